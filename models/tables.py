"""Every table, for those who need all of them at once: the schema and its migrations."""

from models.api_key import ApiKey
from models.billing_period import BillingPeriod
from models.cache import Cache
from models.credit import Credit
from models.hold import Hold
from models.idempotency_key import IdempotencyKey
from models.ledger_entry import LedgerEntry
from models.ledger_hour import LedgerHour, LedgerWatermark
from models.limit import Limit, LimitMonth
from models.placement import Placement
from models.price import Price
from models.project import Project
from models.storage_segment import StorageSegment
from models.token_quota import TokenQuota
from models.usage import Usage

TABLES = (
    Project,
    ApiKey,
    Cache,
    Placement,
    IdempotencyKey,
    Usage,
    StorageSegment,
    Price,
    BillingPeriod,
    LedgerEntry,
    LedgerHour,
    LedgerWatermark,
    Limit,
    LimitMonth,
    Hold,
    Credit,
    TokenQuota,
)
