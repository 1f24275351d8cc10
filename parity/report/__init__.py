"""Reports: pure functions of the record of a run (SCHEMA.md)."""

from collections.abc import Callable
from importlib import import_module

KINDS = ("html", "junit", "markdown", "badge")


def renderer(kind: str) -> Callable[[dict], str]:
    """What turns a record into the text of a report. Raises ModuleNotFoundError: html needs jinja2."""
    return import_module(f"parity.report.{kind}").render
