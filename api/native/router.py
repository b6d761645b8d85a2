"""Our own resources, under /headstart/v1."""

from fastapi import APIRouter

from api.native import billing, cache_report, health, limits, quote

router = APIRouter()
router.include_router(health.router)
router.include_router(billing.router)
router.include_router(cache_report.router)
router.include_router(quote.router)
router.include_router(limits.router)
