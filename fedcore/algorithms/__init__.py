"""Declared algorithms, by name. A file in this folder that calls `ALGORITHMS.add` is found."""

from fedcore.algorithms.algorithm import ALGORITHMS, Algorithm
from fedcore.algorithms.resolve import resolve

__all__ = ["ALGORITHMS", "Algorithm", "resolve"]
