"""Faults on purpose: processes killed, files damaged, disks full; what a run is worth afterwards, counted."""
