"""The thread in which the model steps, and its link to the server's event loop."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

from pytest_qperf.embedded.scheduler import GenerationRequest, Scheduler, TokenEvent


class EngineLoop:
    """Steps a scheduler while it has work; ``submit`` and ``cancel`` may be called from any thread.

    ``on_tokens`` and ``on_failure`` are called in the engine's thread. After ``on_failure`` no
    request goes on.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        on_tokens: Callable[[list[TokenEvent]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._on_tokens = on_tokens
        self._on_failure = on_failure
        self._commands: SimpleQueue[GenerationRequest | str] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends with the process or with a failure."""
        self._thread.start()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request."""
        self._commands.put(request)

    def cancel(self, request_id: str) -> None:
        """Drop a request; one that has ended already is no error."""
        self._commands.put(request_id)

    def _run(self) -> None:
        try:
            while True:
                self._take_commands()
                self._report(self._scheduler.prefill())
                self._report(self._scheduler.decode())
        except BaseException as error:
            self._on_failure(error)
            raise  # the interpreter prints the traceback into the engine's log

    def _take_commands(self) -> None:
        while not self._scheduler.has_work or not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, str):
                self._scheduler.cancel(command)
            else:
                self._scheduler.add(command)

    def _report(self, events: list[TokenEvent]) -> None:
        if events:
            self._on_tokens(events)
