"""Search spaces: templates, sketch rules and modules; all give sketches of a task."""
