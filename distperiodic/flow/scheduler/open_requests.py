# SPDX-License-Identifier: Apache-2.0
"""Requests of a claimer that the store has not answered yet.

If the store needs longer than the time between two ticks of an object, each
tick of the object causes a request that comes too late, and that the claimer
must repeat. Without a limit, the requests for the object would become more and
more, and claims would still be late when the store is fast again. So the
claimer combines requests for the same object.
"""

from collections.abc import Iterable

from distperiodic.core.schedule import Instant

#: A tick, the rule of its objects, and the instant since which the schedule of
#: the job has been in force. Until the first request is answered, a second
#: request for the same object and the same values is superfluous.
DueTick = tuple[Instant, str, Instant]


class OpenRequests:
    """The objects whose rows are being read, and those that are being claimed.
    """

    def __init__(self, jobs: Iterable[str]):
        names = [*jobs]
        #: By job and object. The value is True if another read was requested
        #: meanwhile.
        self._reads: dict[str, dict[str, bool]] = {name: {} for name in names}
        self._claims: dict[str, dict[str, DueTick]] = {
            name: {} for name in names}

    def begin_read(self, job: str, objects: Iterable[str]) -> list[str]:
        """Return those of *objects* whose rows are not being read.

        :meth:`end_read` returns the other objects.
        """
        reads = self._reads[job]
        begun: dict[str, bool] = {}
        for key in objects:
            if key in reads:
                reads[key] = True
            else:
                begun[key] = False
        reads.update(begun)
        return [*begun]

    def end_read(self, job: str, objects: Iterable[str]) -> list[str]:
        """Return those of *objects* whose rows must be read again.

        A row may have changed between its read and a later request.
        """
        reads = self._reads[job]
        return [key for key in objects if reads.pop(key)]

    def is_claiming(self, job: str, key: str, due: DueTick) -> bool:
        """Return whether a claim of this object for this tick is requested."""
        return self._claims[job].get(key) == due

    def begin_claim(self, job: str, objects: Iterable[str],
                    due: DueTick) -> None:
        self._claims[job].update(dict.fromkeys(objects, due))

    def end_claim(self, job: str, objects: Iterable[str],
                  due: DueTick) -> None:
        claims = self._claims[job]
        for key in objects:
            # An object may be requested for a later tick meanwhile.
            if claims.get(key) == due:
                del claims[key]
