"""A NumPy float64 oracle for lookups and updates.

Written from the formulas of TensorFlow's TPU embedding API alone; it shares no
code with the product. Every function returns values together with the sum of
the absolute terms of each element, from which `assert_close` takes its
tolerance.
"""

from oracle.features import Bag, Feature, bags_of
from oracle.lookups import combine, lookup_feature
from oracle.tables import Rule, Table, well_posed
from oracle.tolerance import Terms, assert_close
from oracle.updates import (
    apply_rule,
    initial_slots,
    slot_names,
    summed_gradients,
)

__all__ = [
    "Bag",
    "Feature",
    "Rule",
    "Table",
    "Terms",
    "apply_rule",
    "assert_close",
    "bags_of",
    "combine",
    "initial_slots",
    "lookup_feature",
    "slot_names",
    "summed_gradients",
    "well_posed",
]
