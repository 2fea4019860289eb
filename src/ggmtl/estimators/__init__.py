"""The scikit-learn estimators: parameters, fitted attributes, the model file.

In: what users pass to ``fit`` and ``predict``. Out: fitted attributes in the user's units. This room has no algebra.

====================  ===================================================================
``regressor``         ``GGMTLRegressor``, ``GGMTLRegressor.paper`` and ``load_model``
``classifier``        ``GGMTLClassifier``; ``outcomes``: fits of classes and counts
``state_regressor``   ``fit``, ``partial_fit``, ``predict``, ``predict_interval``: rows to and from the fitted state
``state_estimator``   ``summary``, ``coefficients``, ``effect``, ``save``, ``add_task``, from the fitted state
``base``              the base class, also of the baselines: reading, scaling, attributes, prediction
``parameters``        which values and combinations are allowed; parameters → ``Settings``
``learning``          one fit: memory, device, checkpoint, search, warnings; then more rows and tasks
``model_file``        the model file: a state with its levels as plain data and arrays, and back
``file_parts``        what only some models have in it: task features, curves, intervals, classes and counts
``file_format``       plain forms of values, and which arrays a file may have: shapes and bounds; no pickle
====================  ===================================================================
"""

from ggmtl.estimators.regressor import GGMTLRegressor, load_model

__all__ = ["GGMTLRegressor", "load_model"]
