"""Stress tests: stressors yield conditions, conditions change samples. Running them is left to others."""

from floatscope.qa.stressors.baselines import BASELINES, CLOSED_BOOK, ORACLE
from floatscope.qa.stressors.condition import Condition, derived_seed, stress
from floatscope.qa.stressors.options import NOISE_GOLD, NOISE_KINDS, StressOptions
from floatscope.qa.stressors.pool import Pool
from floatscope.qa.stressors.registry import STRESSORS, Stressor, build_conditions, check_conditions

__all__ = [
    "BASELINES",
    "CLOSED_BOOK",
    "NOISE_GOLD",
    "NOISE_KINDS",
    "ORACLE",
    "STRESSORS",
    "Condition",
    "Pool",
    "StressOptions",
    "Stressor",
    "build_conditions",
    "check_conditions",
    "derived_seed",
    "stress",
]
