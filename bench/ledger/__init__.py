"""A ledger as large as a month of a busy server: its reports, and the hourly accrual."""
