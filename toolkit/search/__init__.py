"""Search: strategies, cost models, the task scheduler, records.  Never measures anything itself."""
