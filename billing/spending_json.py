"""Limits, credit and quotas as JSON values, wherever they are shown: camelCase names, integers, instants in UTC."""

from typing import Any

from billing.limits import LimitStatus
from core.clock import format_instant
from models.credit import Credit
from models.token_quota import TokenQuota


def limit_json(status: LimitStatus) -> dict[str, Any]:
    """key: None where the limit is that of the whole project."""
    limit = status.limit
    return {
        "project": limit.project_id,
        "key": limit.key_id or None,
        "month": status.month,
        "hardNanoUsd": limit.hard_nano_usd,
        "softNanoUsd": limit.soft_nano_usd,
        "spentNanoUsd": status.spent_nano_usd,
        "heldNanoUsd": status.held_nano_usd,
        "leftNanoUsd": status.left_nano_usd,
        "isSoftReached": status.is_soft_reached,
        "resetsAt": format_instant(status.resets_at),
    }


def credit_json(credit: Credit) -> dict[str, Any]:
    """leftNanoUsd: what is neither used nor held."""
    return {
        "project": credit.project_id,
        "grantedNanoUsd": credit.granted_nano_usd,
        "usedNanoUsd": credit.used_nano_usd,
        "heldNanoUsd": credit.held_nano_usd,
        "leftNanoUsd": credit.balance_nano_usd - credit.held_nano_usd,
        "isPrepaid": credit.is_prepaid,
    }


def quota_json(quota: TokenQuota) -> dict[str, Any]:
    return {"project": quota.project_id, "model": quota.model, "maxCachedTokens": quota.max_cached_tokens}
