"""Studies: the plan, the run store, the engine, the tables. `evaluate`, `stress` and `study` are one machine."""
