"""What a good graph is: outer criteria with their derivatives."""

from ggmtl.criteria.sparsity import Sparsity
from ggmtl.criteria.validation import BilevelProblem, Evaluation, HoldOut, WarmStart, evaluate_folds

__all__ = ["BilevelProblem", "Evaluation", "HoldOut", "Sparsity", "WarmStart", "evaluate_folds"]
