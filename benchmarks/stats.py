"""Medians, spreads, ratios with a confidence interval, growth exponents: numbers in, numbers out."""

import numpy as np
from scipy.stats import bootstrap, linregress

UNSTABLE = 0.10  # interquartile range over median, above which a figure is called unstable
RESAMPLES = 2000


def summarise(seconds) -> dict:
    """{"median", "iqr", "min", "n", "unstable"} of one contender's samples."""
    low, median, high = np.percentile(seconds, (25, 50, 75))
    return {
        "median": float(median),
        "iqr": float(high - low),
        "min": float(np.min(seconds)),
        "n": len(seconds),
        "unstable": bool(high - low > UNSTABLE * median),
    }


def ratio(a, b, paired: bool = True) -> dict:
    """{"ratio", "low", "high"}: median(a) / median(b) and its 95 % bootstrap interval (percentile method).

    paired: a[i] and b[i] were taken in the same round, and rounds are resampled, so that what slows a whole
    round down cancels. False: samples of two separate runs, each resampled alone.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    point = float(np.median(a) / np.median(b))
    if min(len(a), len(b)) < 2:
        return {"ratio": point, "low": 0.0, "high": float("inf")}  # one sample bounds nothing
    interval = bootstrap(
        (a, b),
        lambda x, y, axis=-1: np.median(x, axis=axis) / np.median(y, axis=axis),
        paired=paired,
        vectorized=True,
        n_resamples=RESAMPLES,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return {"ratio": point, "low": float(interval.low), "high": float(interval.high)}


def within_noise(interval: dict) -> bool:
    """Whether the interval of a ratio spans 1."""
    return interval["low"] <= 1.0 <= interval["high"]


def growth(lengths, values) -> dict | None:
    """{"exponent", "error", "lengths"}: the slope of log(value) against log(length), with its standard error.

    Fitted over the longest lengths, at most four: shorter ones measure what a call costs whatever its length.
    None with fewer than three, or where a value is not positive.
    """
    points = sorted((n, y) for n, y in zip(lengths, values, strict=True) if y is not None)[-4:]
    if len(points) < 3 or min(y for _, y in points) <= 0:
        return None
    n, y = np.log(np.array(points, float)).T
    line = linregress(n, y)
    return {
        "exponent": float(line.slope),
        "error": float(np.nan_to_num(line.stderr)),  # NaN if all values are equal
        "lengths": [int(p[0]) for p in points],
    }
