"""The scan as a picture: probe accuracy, clusters and steps alone against the layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tacit.calibration.probe import Slice


def draw(slices: Sequence[Slice], chosen: Slice, min_clusters: int, path: Path) -> Path | None:
    """Probe accuracy by pooling; clusters and steps alone of the chosen pooling by radius. Nothing where matplotlib is
    missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    layers = sorted({s.layer for s in slices})
    figure, (probe, clusters, alone) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for pooling in dict.fromkeys(s.pooling for s in slices):
        at = {s.layer: s for s in slices if s.pooling == pooling}
        heights, errors = [at[layer].probe for layer in layers], [at[layer].probe_error for layer in layers]
        probe.errorbar(layers, heights, errors, marker="o", capsize=3, label=pooling)
    for epsilon in sorted({s.epsilon for s in slices}):
        at = {s.layer: s for s in slices if s.pooling == chosen.pooling and s.epsilon == epsilon}
        clusters.plot(layers, [at[layer].clusters for layer in layers], marker="o", label=f"{epsilon:g}")
        alone.plot(layers, [at[layer].singleton_steps for layer in layers], marker="o", label=f"{epsilon:g}")
    clusters.axhline(min_clusters, color="grey", linewidth=0.8)
    probe.set(ylabel="probe accuracy on unseen tasks")
    clusters.set(ylabel=f"clusters ({chosen.pooling}; at least {min_clusters})", yscale="log")
    clusters.yaxis.set_major_formatter("{x:g}")
    clusters.yaxis.set_minor_formatter("{x:g}")
    alone.set(ylabel=f"share of steps alone ({chosen.pooling})", ylim=(-0.02, 1.02))
    probe.legend(title="pooling")
    clusters.legend(title="ε")
    for axes in (probe, clusters, alone):
        axes.set(xlabel="layer, from the end", xticks=layers)
        axes.axvline(chosen.layer, color="grey", linestyle=":")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
