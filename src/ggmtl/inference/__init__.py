"""Uncertainty of a fitted model, and changes to it that need no new fit.

In: a fitted level and the losses of its rows. Out: covariances, standard deviations, changed models.

======================  ==========================================================="""
