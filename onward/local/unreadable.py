"""Requests that nobody can read are refused and not written down: whoever reaches a port could fill the disk."""

from __future__ import annotations

import logging

from aiohttp.http_exceptions import HttpProcessingError

from onward.log import get_logger


class _Readable(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], (HttpProcessingError, ConnectionError)))


def server_log(name: str) -> logging.Logger:
    """For `web.AppRunner(logger=...)`: what is wrong with us is told, what is wrong with a request is not."""
    found = get_logger(f"{name}.http")
    if not found.filters:
        found.addFilter(_Readable())
    return found
