"""A loss on a torch device learns the graph that the same loss in NumPy arrays does."""

import sys
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="losses on a device need torch")

from ggmtl import GGMTLRegressor, TaskStatistics, load_model  # noqa: E402
from ggmtl.bilevel.level import Settings  # noqa: E402
from ggmtl.data.reading import read_prediction, read_training  # noqa: E402
from ggmtl.errors import InputError, MissingExtraError, ParameterError  # noqa: E402
from ggmtl.evidence.dense import EvidenceModel, edge_evidence, prior_terms  # noqa: E402
from ggmtl.evidence.gpu import edges as neighbours  # noqa: E402
from ggmtl.evidence.gpu import edges as sampling  # noqa: E402
from ggmtl.evidence.gpu import loss as placing  # noqa: E402
from ggmtl.evidence.gpu.kernels import nearest_in_neighbourhood  # noqa: E402
from ggmtl.evidence.gpu.loss import DeviceLoss  # noqa: E402
from ggmtl.evidence.hub import hub_evidence  # noqa: E402
from ggmtl.evidence.sampled_edges import Neighbours, learn_neighbours, solves_for  # noqa: E402
from ggmtl.evidence.sampling import sampled_prior_terms  # noqa: E402
from ggmtl.fit import path  # noqa: E402
from ggmtl.graph.candidates import KNN, search_for  # noqa: E402
from ggmtl.runtime.kernels import reference  # noqa: E402
from ggmtl.runtime.sizes import SIZES, Sizes  # noqa: E402
from ggmtl.solve.gpu import system as gpu_system  # noqa: E402
from ggmtl.solve.gpu.system import TensorGraph  # noqa: E402
from ggmtl.solve.solvers import Direct  # noqa: E402
from ggmtl.statistics.least_squares import FoldedLoss, LeastSquares  # noqa: E402
from made import sums_of  # noqa: E402

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=no_gpu)])
def place(request):
    return torch.device(request.param)


def smooth_problem(n=600, p=5, rows=12, parts=1, seed=0):
    """Losses of tasks whose models vary smoothly over a square, and those models."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(size=(n, 2))
    models = np.sin(places @ rng.normal(scale=3.0, size=(2, p)) + rng.uniform(0, 6, p))
    return [loss_of(models, rows, rng) for _ in range(parts)], models, places


def loss_of(models, rows, rng):
    n, p = models.shape
    X = rng.normal(size=(n, rows, p))
    y = np.einsum("nrp,np->nr", X, models) + rng.normal(size=(n, rows))
    return sums_of(X, y)


def neighbour_state(places, p, hub=0.3, k=6, seed=1):
    """A graph of near places with values over a decade or so."""
    n = len(places)
    edges = KNN(k=k).propose(places, np.arange(n)).edges
    values = np.random.default_rng(seed).uniform(0.1, 3.0, size=len(edges))
    nothing = np.zeros(len(edges))
    return Neighbours(edges, values, nothing > 0, np.full(p, hub), nothing, np.zeros((n, p)))


def relative(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


# ---------------------------------------------------------------- the loss


@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_loss_on_a_device_is_that_of_the_arrays(place, dtype, accuracy, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", 2000)
    (here, other), models, _ = smooth_problem(n=90, parts=2)
    there, elsewhere = (DeviceLoss.of(loss, place, dtype) for loss in (here, other))
    unit, ridge = np.linspace(0.5, 2.0, 5), np.full(models.shape, 1e-3)
    assert (there.n_tasks, there.n_features) == models.shape
    for mine, true in ((there, here), (there.scaled(unit), here.scaled(unit)), (there.joined([elsewhere]),) * 2):
        true = here.joined([other]) if mine is true else true
        np.testing.assert_allclose(mine.task_values(models), true.task_values(models), rtol=10 * accuracy)
        np.testing.assert_allclose(mine.alone(ridge), true.alone(ridge), rtol=0, atol=100 * accuracy)
        np.testing.assert_array_equal(mine.count, true.count)
        assert mine.value(models) == pytest.approx(true.value(models), rel=accuracy)
        for a, b in zip(mine.pooled(), true.pooled()):
            np.testing.assert_allclose(a, b, rtol=accuracy, atol=accuracy)
    some = there.of_tasks(np.array([3, 17]))
    assert isinstance(some, LeastSquares)
    np.testing.assert_allclose(some.gram, here.gram[[3, 17]], rtol=accuracy)
    np.testing.assert_array_equal(some.moment, here.moment[[3, 17]])
    np.testing.assert_array_equal(there.target_square, here.target_square)


def test_of_several_minima_of_a_task_the_shortest_is_taken(place):
    (here,), models, _ = smooth_problem(n=8, rows=2)
    free = np.zeros(models.shape)
    here.gram[0], here.moment[0] = 0.0, 0.0
    shortest = np.matmul(np.linalg.pinv(here.gram, rcond=1e-10, hermitian=True), here.moment[..., None])[..., 0]
    tiny = np.full(models.shape, 1e-9)
    np.testing.assert_allclose(DeviceLoss.of(here, place).alone(tiny), shortest, atol=1e-4)
    np.testing.assert_array_equal(DeviceLoss.of(here, place).alone(free)[0], 0.0)


def test_matrices_in_float32_of_tasks_with_few_rows_have_sane_minima(place):
    (here,), models, _ = smooth_problem(n=50, rows=3)
    there = DeviceLoss.of(here, place, torch.float32)
    values = there.task_values(there.alone(np.full(models.shape, 1e-6)))
    assert values.max() < 1e-2 * here.target_square.mean()


@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e4])
def test_hub_evidence_on_a_device_is_that_of_the_arrays(place, strength):
    (here,), _, _ = smooth_problem(n=80, rows=4)
    hub = strength * np.array([1.0, 2.0, 0.5, 3.0, 1.0])
    a, b = hub_evidence(here, hub), hub_evidence(DeviceLoss.of(here, place), hub)
    assert type(a) is type(b)
    assert b.value == pytest.approx(a.value, rel=1e-8)
    assert b.noise == pytest.approx(a.noise, rel=1e-8)
    for name in ("coefficients", "common"):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), rtol=1e-8, atol=1e-8)
    # The gradient is half the difference of the expected squared deviations and n/h.
    one, other = (80 / hub + 2.0 * found.gradient for found in (a, b))
    np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(hub * b.gradient, hub * a.gradient, atol=1e-8 * 80)


# ---------------------------------------------------------------- samples


def dense(system):
    n, p = system.shape
    eye = torch.eye(n * p, dtype=torch.float64, device=system.gram.device).view(n, p, n * p)
    return system.apply(eye).reshape(n * p, n * p)


@pytest.mark.parametrize("chunk", [1 << 27, 200])
def test_right_hand_sides_of_samples_have_the_systems_covariance(place, chunk, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", chunk)
    (here,), _, places = smooth_problem(n=12, p=2, rows=3)
    system = neighbours.DeviceSolves(DeviceLoss.of(here, place))._system(neighbour_state(places, 2, hub=2.0, k=3))
    number = 40_000 if chunk > 200 else 2000
    noise = sampling.posterior_noise(system, number, torch.Generator(place).manual_seed(0)).reshape(24, number)
    A = dense(system)
    error = (noise @ noise.T / number - A) / A.diagonal().sqrt().outer(A.diagonal().sqrt())
    assert float(error.abs().max()) < 5.0 / number**0.5


def test_prior_samples_have_the_exact_resistances(place):
    (here,), _, places = smooth_problem(n=60, p=3)
    state = neighbour_state(places, 3)
    hub = np.array([0.3, 0.3 * (1 + 1e-14), 0.8])
    exact = prior_terms(EvidenceModel(here, state.edges, np.ones(3), hub), state.edge_values)
    graph = TensorGraph.of(torch.as_tensor(state.edges).to(place), 60)
    weights = torch.as_tensor(state.edge_values).to(place)
    found = sampling.prior_moments(graph, weights, hub, 4000, torch.Generator(place).manual_seed(0), 1e-6)
    np.testing.assert_allclose(found.resistance.cpu().numpy(), exact.resistance.sum(axis=1), rtol=0.15)
    np.testing.assert_allclose(found.trace, exact.trace, rtol=0.02)
    assert found.trace[0] == found.trace[1]


def test_under_a_strong_hub_the_prior_is_that_of_the_cpu_to_first_order(place):
    (here,), _, places = smooth_problem(n=60, p=2)
    state = neighbour_state(places, 2, hub=300.0)
    model = EvidenceModel(here, state.edges, np.ones(2), state.hub)
    resistance, trace = sampled_prior_terms(model, state.edge_values, 4, np.random.default_rng(0))
    graph = TensorGraph.of(torch.as_tensor(state.edges).to(place), 60)
    weights = torch.as_tensor(state.edge_values).to(place)
    found = sampling.prior_moments(graph, weights, state.hub, 4, torch.Generator(place), 1e-2)
    np.testing.assert_allclose(found.resistance.cpu().numpy(), resistance, rtol=1e-12)
    np.testing.assert_allclose(found.trace, trace, rtol=1e-12)


# ---------------------------------------------------------------- a round


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_models_for_given_edges_are_those_of_the_direct_solver(place, dtype):
    (here,), _, places = smooth_problem()
    state = neighbour_state(places, 5)
    system = EvidenceModel(here, state.edges, np.ones(5), state.hub).system(state.edge_values)
    exact = Direct.of(system).solve(here.moment).value
    found = solves_for(DeviceLoss.of(here, place, dtype)).models(state)
    assert relative(found, exact) < 1e-6


KINDS = ("prior", "posterior")


@pytest.mark.parametrize("exact_prior", [True, False])
def test_moments_are_on_average_those_of_exact_evidence(place, exact_prior):
    sizes = SIZES if exact_prior else Sizes(exact_prior=0)
    (here,), _, places = smooth_problem(n=50, p=3, rows=8)
    state = neighbour_state(places, 3)
    exact = edge_evidence(EvidenceModel(here, state.edges, np.ones(3), state.hub), state.edge_values)
    solves, rounds = solves_for(DeviceLoss.of(here, place), sizes), 24
    drawn = [solves.moments(state, np.random.default_rng(k)) for k in range(rounds)]
    for mine, its in (("posterior", "edge_posterior"), ("prior", "edge_prior"), *(("hub_" + k,) * 2 for k in KINDS)):
        values, true = np.array([getattr(one, mine) for one in drawn]), getattr(exact.expectations, its)
        # Solves to a percent leave an error of their own.
        error = np.maximum(values.std(axis=0, ddof=1) / rounds**0.5, 2e-3 * true)
        score = np.abs(values.mean(axis=0) - true) / error
        assert score.max() < 4.5, mine
        # Equal strengths share their prior samples: for the hub there is one score, not many.
        assert mine.startswith("hub") or np.mean(score**2) < 2.0, mine
    assert relative(drawn[0].coefficients, exact.coefficients) < 1e-3
    pairs = np.array([[0, 49], [3, 20]])
    again = drawn[0].expected_squares(np.vstack([state.edges, pairs]))
    np.testing.assert_allclose(again[:-2], drawn[0].posterior)
    assert (again[-2:] > 0).all()


def test_equal_seeds_give_equal_rounds(place):
    (here,), _, places = smooth_problem(n=400)
    state, solves = neighbour_state(places, 5), solves_for(DeviceLoss.of(here, place))
    first, second, other = (solves.moments(state, np.random.default_rng(k)) for k in (3, 3, 4))
    np.testing.assert_array_equal(first.posterior, second.posterior)
    np.testing.assert_array_equal(first.prior, second.prior)
    assert (first.posterior != other.posterior).any()


def test_learned_neighbours_differ_by_no_more_than_samples_do(place):
    (here,), models, places = smooth_problem()
    state, groups = neighbour_state(places, 5), np.zeros(5, dtype=int)
    mine = [learn_neighbours(here, state, groups, seed=seed) for seed in range(5)]
    its = [learn_neighbours(DeviceLoss.of(here, place), state, groups, seed=seed) for seed in range(5)]
    one, two, found = *mine[:2], its[0]
    between = relative(one.coefficients, two.coefficients)
    assert relative(found.coefficients, one.coefficients) < 1.5 * between + 1e-4
    # One error varies by 2 % from seed to seed.
    here_error, there_error = (np.mean([relative(fit.coefficients, models) for fit in fits]) for fits in (mine, its))
    assert there_error == pytest.approx(here_error, rel=0.03)
    # Beside edges of this strength the hub is as good as gone, at whatever tiny strength it stopped.
    np.testing.assert_allclose(found.hub, one.hub, rtol=0.2, atol=1e-4 * one.edge_values.mean())
    alike = np.corrcoef(np.log([found.edge_values, one.edge_values, two.edge_values]))
    assert alike[0, 1] > alike[1, 2] - 0.1


# ---------------------------------------------------------------- neighbours


@pytest.mark.parametrize("chunk", [1 << 27, 4000])
def test_neighbours_of_neighbours_are_those_of_the_reference(place, chunk, monkeypatch):
    monkeypatch.setattr(gpu_system, "CHUNK_NUMBERS", chunk)
    rng = np.random.default_rng(0)
    points = rng.normal(size=(300, 4))
    edges = np.unique(np.sort(rng.integers(0, 290, size=(700, 2)), axis=1), axis=0)
    edges = edges[edges[:, 0] != edges[:, 1]]
    graph = TensorGraph.of(torch.as_tensor(edges).to(place), 300)
    k = int(np.bincount(edges.ravel()).max() + 1) // 2
    found = nearest_in_neighbourhood(torch.as_tensor(points).to(place), graph, k).cpu().numpy()
    lists = graph.start.cpu().numpy(), graph.neighbour.cpu().numpy()
    np.testing.assert_array_equal(found, reference.nearest_in_neighbourhood(points, *lists, k, 0, len(points)))
    # A point without neighbours has only itself.
    np.testing.assert_array_equal(found[290:], np.arange(290, 300)[:, None].repeat(k, axis=1))


def test_candidates_are_sought_on_the_device_of_the_loss(place):
    (here,), models, _ = smooth_problem()
    seek = search_for(DeviceLoss.of(here, place))
    exact = KNN(k=7).propose(models, np.arange(600))
    np.testing.assert_array_equal(KNN(k=7).propose(models, np.arange(600), None, seek).edges, exact.edges)
    seek = partial(seek, sizes=Sizes(exact_neighbours_gpu=100))
    near = KNN(k=7).propose(models + 0.05 * np.random.default_rng(0).normal(size=models.shape), np.arange(600)).edges
    better = KNN(k=7).propose(models, np.arange(600), near, seek)
    assert exact.mask_of(better).mean() > 0.98


# ---------------------------------------------------------------- a whole fit


ALWAYS_LARGE = Sizes(one_fold=1000, exact_evidence=0, clusters=0)


class LargeRegressor(GGMTLRegressor):
    """Takes every problem for a large one."""

    sizes = ALWAYS_LARGE


def test_a_whole_fit_is_as_good_on_a_device(place):
    settings = Settings("squared_l2", KNN(), None, True, np.ones(8, dtype=bool), sizes=ALWAYS_LARGE)
    results = []
    for there in (False, True):
        # Made anew, because the search uses them up.
        losses, models, _ = smooth_problem(p=8, rows=8, parts=2)
        folded = FoldedLoss(tuple(DeviceLoss.of(loss, place) if there else loss for loss in losses), first_scored=1)
        results.append(path.fit_path(folded, settings, np.arange(600), criterion="evidence", choose_entropy=True))
    here, there = results
    assert list(here.levels) == list(there.levels)
    assert here.best.name == there.best.name == "graph"
    assert there.held_out_error() == pytest.approx(here.held_out_error(), rel=0.02)
    # Levels without samples are equal.
    for name in ("pooled", "hub", "independent"):
        k = here.position(name)
        assert relative(there.levels[name].coefficients, here.levels[name].coefficients) < 1e-6
        assert there.errors.mean()[k] == pytest.approx(here.errors.mean()[k], rel=1e-6)
    errors = [relative(result.best.coefficients, models) for result in results]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def rows_of(n=300, d=3, rows=8, seed=0):
    rng = np.random.default_rng(seed)
    models = np.sin(rng.uniform(size=(n, 2)) @ rng.normal(scale=3.0, size=(2, d)))
    tasks = np.repeat(np.arange(n), rows)
    X = rng.normal(size=(n * rows, d))
    return X, np.einsum("rd,rd->r", X, models[tasks]) + rng.normal(size=n * rows), tasks


def test_the_regressor_fits_on_the_device_it_is_given(monkeypatch, tmp_path):
    X, y, tasks = rows_of()
    used, on_device = [], placing.on_device
    monkeypatch.setattr(placing, "check_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(placing, "on_device", lambda *parts: used.append(on_device(*parts)) or used[-1])
    model = LargeRegressor(device="cuda").fit(X, y, tasks=tasks)
    assert all(isinstance(part, DeviceLoss) for part in used[0].parts)
    plain = LargeRegressor().fit(X, y, tasks=tasks)
    assert model.validation_error_ == pytest.approx(plain.validation_error_, rel=0.02)
    assert np.isfinite(model.predict(X[:5], tasks=tasks[:5], return_std=True)[1]).all()
    monkeypatch.undo()
    # A model may be read where there is no such device.
    model.save(tmp_path / "model.ggmtl")
    np.testing.assert_array_equal(load_model(tmp_path / "model.ggmtl").coef_, model.coef_)


def test_many_folds_become_one_held_out_and_the_rest():
    X, y, tasks = rows_of()
    statistics = TaskStatistics.from_arrays(X, y, tasks, folds=4)
    folds = LargeRegressor().fit_statistics(statistics).state_.folded()
    placed = placing.on_device(folds, "cpu")
    assert placed.scored == (1,)
    for mine, true in zip(placed.parts, (folds.training(0), folds.parts[0])):
        np.testing.assert_array_equal(mine.tensors.gram.numpy(), true.gram)
    np.testing.assert_allclose(placed.total.count, folds.total.count)
    without = placing.on_device(FoldedLoss(folds.parts[:1]), "cpu")
    assert (len(without.parts), without.scored) == (1, ())


def test_little_memory_means_float32_and_less_is_refused(monkeypatch):
    losses, _, _ = smooth_problem(n=100)
    folded = FoldedLoss(tuple(losses))
    numbers = 100 * 25
    # Matrices: three copies and two in float32 for the solver; and vectors.
    vectors = 8 * 80 * 100 * 5
    monkeypatch.setattr(placing, "free_bytes", lambda _: (3 * 8 + 8) * numbers + vectors)
    assert placing.on_device(folded, "cpu").parts[0].tensors.gram.dtype == torch.float32
    monkeypatch.setattr("ggmtl.solve.gpu.system.free_bytes", lambda _: 1e3)
    with pytest.raises(InputError, match=r'Fitting 100 tasks with 5 coefficients needs .* device="cpu"'):
        placing.on_device(folded, "cpu")


# ---------------------------------------------------------------- what is refused, and why


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "mps", 0, None])
def test_names_of_devices_that_mean_nothing_are_refused(name):
    with pytest.raises(ParameterError, match=r'device must be "cpu", "cuda" or'):
        GGMTLRegressor(device=name).fit(*rows_of(n=4))


@pytest.mark.parametrize("options", [{"criterion": "validation"}, {"penalty": "l2"}, {"hub": False}])
def test_criteria_that_have_no_form_on_a_device_are_refused(options):
    with pytest.raises(ParameterError, match=r"device='cuda' needs criterion=\"evidence\".*Use device=\"cpu\""):
        GGMTLRegressor(device="cuda", **options).fit(*rows_of(n=4))


def test_a_missing_device_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ParameterError, match=r"device='cuda' cannot be used: torch .* sees no CUDA device"):
        GGMTLRegressor(device="cuda").fit(*rows_of(n=4))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ParameterError, match=r"device='cuda:3' .* sees one CUDA device"):
        GGMTLRegressor(device="cuda:3").fit(*rows_of(n=4))
    assert placing.check_device("cuda:0") == torch.device("cuda", 0)


def test_a_device_without_torch_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"device='cuda' needs the package 'torch'.*ggmtl\[gpu\]"):
        GGMTLRegressor(device="cuda").fit(*rows_of(n=4))


def test_few_tasks_are_fitted_on_the_cpu_and_the_log_says_so(monkeypatch, caplog):
    monkeypatch.setattr(placing, "check_device", lambda name: torch.device("cpu"))
    X, y, tasks = rows_of(n=6)
    with caplog.at_level("INFO", logger="ggmtl"):
        model = GGMTLRegressor(device="cuda", validation=None).fit(X, y, tasks=tasks)
    assert any("6 tasks are few" in message for message in caplog.messages)
    np.testing.assert_array_equal(model.coef_, GGMTLRegressor(validation=None).fit(X, y, tasks=tasks).coef_)


# ---------------------------------------------------------------- tensors as input


def test_tensors_are_fitted_and_predicted_as_arrays():
    X, y, tasks = rows_of(n=5)
    plain = GGMTLRegressor(validation=None).fit(X, y, tasks=tasks)
    rows, labels = torch.as_tensor(X).requires_grad_(), torch.as_tensor(tasks)
    model = GGMTLRegressor(validation=None).fit(rows, torch.as_tensor(y), tasks=labels)
    np.testing.assert_array_equal(model.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict(rows, tasks=labels), plain.predict(X, tasks=tasks))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_tensors_of_any_kind_and_place_are_read_to_the_host(place, dtype):
    X, y, tasks = (torch.as_tensor(part).to(place) for part in rows_of(n=5))
    X, y = X.to(dtype), y.to(dtype)
    data = read_training(X, y, tasks, sample_weight=torch.ones_like(y))
    np.testing.assert_array_equal(data.X, X.double().cpu().numpy())
    np.testing.assert_array_equal(data.y, y.double().cpu().numpy())
    matrix, labels = read_prediction(X, tasks, n_features=3)
    np.testing.assert_array_equal(matrix, data.X)
    np.testing.assert_array_equal(labels, data.tasks)


def test_pairs_and_weights_may_be_tensors():
    X, y, tasks = rows_of(n=4)
    pairs = [(X[tasks == k], y[tasks == k]) for k in range(4)]
    plain = GGMTLRegressor(validation=None).fit(pairs)
    tensors = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in pairs]
    np.testing.assert_array_equal(GGMTLRegressor(validation=None).fit(tensors).coef_, plain.coef_)
    weight = np.arange(len(y)) % 3 + 1.0
    given = [
        GGMTLRegressor(validation=None).fit(X, y, tasks, sample_weight=w).coef_
        for w in (weight, torch.as_tensor(weight))
    ]
    np.testing.assert_array_equal(*given)
