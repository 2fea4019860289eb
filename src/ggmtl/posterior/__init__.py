"""Standard errors of the models, removing an edge, adding a task or more rows."""

from ggmtl.posterior.attachment import AttachedTask, attach, follow, insert_task
from ggmtl.posterior.noise import HeldOut
from ggmtl.posterior.removal import WithoutEdge, without_edge
from ggmtl.posterior.survey import Survey, survey_of
from ggmtl.posterior.uncertainty import Posterior, noise_of, posterior_of, user_units

__all__ = [
    "AttachedTask",
    "HeldOut",
    "Posterior",
    "Survey",
    "WithoutEdge",
    "attach",
    "follow",
    "insert_task",
    "noise_of",
    "posterior_of",
    "survey_of",
    "user_units",
    "without_edge",
]
