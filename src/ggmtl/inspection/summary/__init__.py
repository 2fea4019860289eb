"""A fitted model in plain data and in words: what ``model.summary()``, the page and the command line show.

In: a fitted model. Out: one dict that ``json.dumps`` takes (``collect``), and sentences about it.

- ``collect``: the dict; ``coefficients``: which coefficients are shared, and the map of tasks.
- ``verdict``: did sharing help, how much, and how sure is that; the words of the verdict.
- ``words``: the other sentences, and the HTML of notebooks; ``phrases``: numbers, lists and intervals in words.
"""
