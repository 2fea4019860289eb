"""Standard errors of the models, removing an edge, adding a task."""

from ggmtl.posterior.attachment import AttachedTask, attach, insert_task, new_weights
from ggmtl.posterior.removal import WithoutEdge, without_edge
from ggmtl.posterior.uncertainty import HeldOut, Posterior, posterior_of, present_problem, user_units

__all__ = [
    "AttachedTask",
    "HeldOut",
    "Posterior",
    "WithoutEdge",
    "attach",
    "insert_task",
    "new_weights",
    "posterior_of",
    "present_problem",
    "user_units",
    "without_edge",
]
