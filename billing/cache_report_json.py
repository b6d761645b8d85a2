"""The report of caches as JSON values, wherever it is shown."""

from collections.abc import Iterable
from typing import Any

from billing.break_even import rounded
from billing.cache_report import CacheFigures, CacheReport
from billing.report_json import period_json, sums_json
from core.ids import cache_name


def cache_report_json(made: CacheReport, shown: Iterable[CacheFigures]) -> dict[str, Any]:
    """The totals are those of all caches; shown: which of them are listed, in that order."""
    return {
        **period_json(made.whole),
        "costNanoUsd": sum(line.cost_nano_usd for line in made.lines),
        "hitsSavedNanoUsd": sum(line.hits_saved_nano_usd for line in made.lines),
        "netNanoUsd": sum(line.net_nano_usd for line in made.lines),
        "cacheCount": len(made.lines),
        "losingCacheCount": len(made.losing),
        "caches": [_cache_json(each) for each in shown],
    }


def _cache_json(figures: CacheFigures) -> dict[str, Any]:
    line = figures.line
    sums = sums_json(line.sums)
    return {
        "project": line.project_id,
        "cache": line.cache_id,
        "name": cache_name(line.cache_id),
        "model": figures.model,
        "tokenCount": figures.token_count,
        "keptSeconds": figures.kept_seconds,
        "hits": line.sums.hits,
        "hitsPerHour": rounded(figures.hits_per_hour),
        "breakEvenHitsPerHour": rounded(figures.hits_per_hour_to_keep),
        "costNanoUsd": line.cost_nano_usd,
        "hitsSavedNanoUsd": line.hits_saved_nano_usd,
        "netNanoUsd": line.net_nano_usd,
        "costsMoreThanItSaves": line.net_nano_usd < 0,
        "provisionalNanoUsd": line.sums.provisional_nano_usd,
        "meters": sums["meters"],
    }
