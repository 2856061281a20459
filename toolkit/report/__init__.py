"""`nestling report`: a run of tuning as one page that reads without a network.

`facts` reads the database, `charts` turns numbers into geometry, `page` puts both into words, and
the templates lay them out.
"""
