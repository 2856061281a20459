"""Boards of many computers behind one tuner, as resources of Dask (extra `farm`)."""
