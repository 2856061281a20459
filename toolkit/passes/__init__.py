"""Graph passes: functions from graph to graph, ending in fused groups."""
