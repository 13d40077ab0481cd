"""The search: spaces, Optuna's samplers and pruners, the study and its journal."""

SAMPLERS = ("tpe", "random", "grid")
PRUNERS = ("asha", "asha-promote", "hyperband", "median", "none")
