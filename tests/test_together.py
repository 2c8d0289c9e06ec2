"""Still and moving together: what is left out, who is taught it, and how the parts are weighed."""

from __future__ import annotations

import pytest
import torch

from adagauss.backbones import BackboneConfig
from adagauss.classifiers.together import SHARES, Blend, TogetherScorer
from adagauss.core.learn import Learner
from adagauss.core.task import CurrentTask
from adagauss.data.augment import Augmentation
from adagauss.errors import ConfigError
from adagauss.methods import make_method
from adagauss.representation import Representation
from adagauss.utils.runtime import Runtime
from tests.contracts.toy import IMAGES, quick_method, taught, toy_images, toy_learner, toy_tasks

NAME = "adagauss-still"


def scorer_of(learner: Learner) -> TogetherScorer:
    scorer = learner.state.scorer
    assert isinstance(scorer, TogetherScorer)
    return scorer


def said(right: float, targets: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Scores of three classes that name the right one in a share of the images."""
    guesses = torch.where(torch.rand(len(targets), generator=generator) < right, targets, (targets + 1) % 3)
    return 4.0 * torch.nn.functional.one_hot(guesses, 3).double()


@pytest.mark.parametrize(("moving", "still"), [(1.0, 0.4), (0.4, 1.0)])
def test_the_part_that_is_right_more_often_has_more_to_say(moving: float, still: float) -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (200,), generator=generator)
    blend = Blend()
    assert blend.share == 0.5
    blend.observe(said(moving, targets, generator), said(still, targets, generator), targets)
    assert blend.share != 0.5
    assert (blend.share > 0.5) == (still > moving)
    assert int(blend.images) == 200


def test_evidence_for_the_weight_adds_up() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(3, (50,), generator=generator)
    good, bad = said(0.9, targets, generator), said(0.4, targets, generator)
    blend = Blend()
    for _ in range(10):
        blend.observe(good, bad, targets)
    before = blend.share
    blend.observe(bad, good, targets)
    assert abs(blend.share - before) < 0.2
    assert before < 0.5


def test_scores_are_the_weighed_sum_of_both_log_probabilities() -> None:
    learner = taught(NAME, 2)
    scorer = scorer_of(learner)
    features = learner.features(toy_images(test=True).images)
    size = learner.network.extractor.size
    moving, still = scorer.moving(features[:, :size]), scorer.still(features[:, size:])
    share, blend = float(scorer.share), scorer.blend
    assert share in [pytest.approx(one) for one in SHARES]
    one = torch.log_softmax(moving / blend.moving_temperature, 1)
    wanted = ((1 - share) * one + share * torch.log_softmax(still, 1)) / blend.temperature
    torch.testing.assert_close(scorer(features), wanted)


def test_the_network_is_not_trained_on_what_judges_and_everything_else_learns_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained: list[int] = []
    fit = Representation.fit

    def spy(self: Representation, now: CurrentTask, *rest: object) -> object:
        trained.append(len(now.data))
        return fit(self, now, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Representation, "fit", spy)
    learner = toy_learner(NAME, None, **{"evidence.of_training": 0.2})
    learner.learn(toy_tasks()[0])
    assert trained == [2 * 24]
    assert int(scorer_of(learner).blend.images) == 2 * 6
    assert learner.memory.counts.tolist() == [IMAGES, IMAGES]
    assert scorer_of(learner).still.sums.counts.tolist() == [IMAGES, IMAGES]


def test_nobody_is_left_out_on_request_and_both_parts_weigh_alike() -> None:
    learner = toy_learner(NAME, None, **{"evidence.of_training": 0.0})
    learner.learn(toy_tasks()[0])
    assert int(scorer_of(learner).blend.images) == 0
    assert float(scorer_of(learner).share) == 0.5


def test_probabilities_are_judged_by_images_that_no_network_was_trained_on() -> None:
    learner = taught(NAME, 2)
    assert learner.state.evidence.held_out
    assert int(learner.state.evidence.images.sum()) == int(scorer_of(learner).blend.images)


def test_a_companion_sees_the_images_of_a_part_of_a_task() -> None:
    network, data = taught(NAME, 1).network, toy_tasks()[0]
    now = CurrentTask(0, data, network, None, Augmentation.none(), Runtime())
    now.features()
    part = now.part(torch.tensor([0, 5, 9]))
    alone = now.of_companion().features()
    torch.testing.assert_close(part.of_companion().features(), alone[[0, 5, 9]])
    assert part.prediction_features().shape == (3, network.extractor.prediction_size)
    assert part.others().rows.tolist() == [row for row in range(len(data)) if row not in (0, 5, 9)]


def test_the_still_part_is_that_of_the_exact_method_with_the_same_images() -> None:
    """The same dictionary from the same seed, and the same sums: adding what was left out later changes nothing."""
    together, alone = taught(NAME, 2), taught("exact", 2)
    mine, theirs = scorer_of(together).still.sums, alone.state.scorer.get_submodule("sums")
    torch.testing.assert_close(mine.gram, theirs.get_buffer("gram"), rtol=1e-5, atol=1e-3)
    torch.testing.assert_close(mine.cross, theirs.get_buffer("cross"), rtol=1e-5, atol=1e-3)


def test_a_method_without_a_companion_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"second network that is never trained.*backbone.companion.name"):
        quick_method("adagauss+", None, **{"classifier.kind": "together"})
    with pytest.raises(ConfigError, match="no companion of its own"):
        make_method(NAME, settings={"backbone.companion.companion": {"name": "patches", "features": None}})


def test_a_companion_that_could_learn_is_never_trained() -> None:
    settings: dict[str, object] = {
        "backbone.companion": {"name": "convnet", "features": None},
        "classifier.still.flips": False,
    }
    learner = toy_learner(NAME, None, **settings)
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items() if ".companion." in name}
    assert before
    learner.learn(toy_tasks()[0])
    after = learner.network.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_sums_of_a_companion_beyond_the_memory_name_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = toy_learner(NAME)
    monkeypatch.setattr("adagauss.utils.runtime.available_memory", lambda: 2_000_000)
    with pytest.raises(ConfigError, match=r"backbone.companion.options.filters="):
        learner.learn(toy_tasks()[0])


def test_a_companion_is_off_by_default() -> None:
    assert BackboneConfig().companion is None
