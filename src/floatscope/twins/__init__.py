"""The twins: the knowledge world, and one ARM and two MDMs trained in it, forks of one parent."""

from floatscope.twins import world

__all__ = ["world"]
