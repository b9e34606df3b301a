"""A close look that fails in a rank of the built-in workload takes nothing of what was measured with it."""

from offtune.rank_report import RankReport
from offtune.worker.failures import DIED_IN_CLOSE_LOOK
from offtune.worker.train import Rank


def test_the_report_is_kept_before_the_close_look_and_survives_its_failure(monkeypatch):
    measured = RankReport(rank=0, outcome="done", step_s=(0.5,))
    kept = []

    def full(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Rank, "_look_closely", full)
    rank = object.__new__(Rank)
    report = rank._looked_at(None, measured, kept.append)
    assert [one.close_error for one in kept] == [DIED_IN_CLOSE_LOOK] and kept[0].step_s == (0.5,)
    assert (report.outcome, report.step_s, report.close_error) == ("done", (0.5,), "MemoryError: no room")
