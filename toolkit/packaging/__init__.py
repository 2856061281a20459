"""The folder a firmware team drops into its project."""
