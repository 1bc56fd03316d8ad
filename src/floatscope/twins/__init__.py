"""The twins: the knowledge world, and one ARM and two MDMs trained in it from one parent, which ship with the package."""
