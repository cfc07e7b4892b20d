"""For all tests."""

from __future__ import annotations

import inspect
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch

from fedcore import extensions
from fedcore.errors import FedError

# toy tensors gain nothing from threads, and with other processes about they wait for each other
torch.set_num_threads(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/law --extension mine.py`: the law tests of what a file of yours registers."""
    parser.addoption("--extension", action="append", default=[], type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Registered before the tests are collected, since they are parametrised by the registries."""
    try:
        extensions.load(config.getoption("--extension"))
    except FedError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure is followed by what its test is about: many say what is wrong then."""
    report = yield
    about = inspect.getdoc(getattr(item, "function", None))
    if report.failed and about:
        report.sections.append(("what this test is about", about))
    return report


@pytest.fixture
def own_signals() -> Iterator[None]:
    """A world listens to signals; the tests after one that joins a world must not."""
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
