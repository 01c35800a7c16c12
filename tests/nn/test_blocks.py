import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from routing_lightning.errors import UsageError
from routing_lightning.nn import LinearBlocks, ModuleBlocks, dispatch


def one_by_one(blocks: LinearBlocks, x: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Each sample through its block, the obvious way."""
    rows = []
    for row, action in zip(x, actions.tolist(), strict=True):
        if action == blocks.num_blocks:
            rows.append(row)
            continue
        row = nn.functional.linear(row, *blocks.linear(action))
        rows.append(row.relu() if blocks.relu else row)
    return torch.stack(rows)


def gradients(blocks, x, outputs):
    outputs.square().sum().backward()
    found = [x.grad] + [parameter.grad for parameter in blocks.parameters()]
    x.grad = None
    blocks.zero_grad()
    return found


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 40),
    num_blocks=st.integers(1, 7),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    relu=st.booleans(),
    skew=st.floats(1, 6),
    may_pass=st.booleans(),
)
def test_dispatch_equals_the_loop_over_samples(way, seed, count, num_blocks, sizes, relu, skew, may_pass):
    torch.manual_seed(seed)
    inputs, outputs = sizes[:1] * 2 if may_pass else sizes
    dtype = torch.float32 if way is dispatch._CompiledLinear else torch.float64
    blocks = LinearBlocks(num_blocks, inputs, outputs, relu=relu).to(dtype)
    x = torch.randn(count, inputs, dtype=dtype, requires_grad=True)
    actions = (torch.rand(count) ** skew * (num_blocks + may_pass)).long()
    expected = one_by_one(blocks, x, actions)
    expected_gradients = gradients(blocks, x, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "fastest_way", lambda *_: way)
        found = blocks(x, actions)
        torch.testing.assert_close(found, expected)
        for ours, theirs in zip(gradients(blocks, x, found), expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 12),
    inner=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    relu=st.booleans(),
    may_pass=st.booleans(),
)
def test_sequences_equal_the_loop_over_samples(way, seed, count, inner, relu, may_pass):
    """Activations (N, ..., in): all rows of a sample go through its block."""
    torch.manual_seed(seed)
    dtype = torch.float32 if way is dispatch._CompiledLinear else torch.float64
    blocks = LinearBlocks(3, 4, 4 if may_pass else 5, relu=relu).to(dtype)
    x = torch.randn(count, *inner, 4, dtype=dtype, requires_grad=True)
    actions = torch.randint(3 + may_pass, (count,))
    expected = one_by_one(blocks, x, actions)
    expected_gradients = gradients(blocks, x, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "fastest_way", lambda *_: way)
        found = blocks(x, actions)
        torch.testing.assert_close(found, expected)
        for ours, theirs in zip(gradients(blocks, x, found), expected_gradients, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "shape",
    [
        (0, 3, 5),
        (2, 0, 5),
    ],
)
def test_empty_sequences_give_empty_outputs(shape):
    x = torch.zeros(shape, requires_grad=True)
    outputs = LinearBlocks(2, 5, 3)(x, torch.arange(len(x)))
    outputs.sum().backward()
    assert outputs.shape == (*shape[:2], 3) and x.grad.shape == shape


@pytest.mark.parametrize("blocks", [LinearBlocks(3, 4, 5), LinearBlocks(3, 4, 5, relu=False)])
def test_a_block_alone_gives_what_the_set_gives(blocks):
    x = torch.randn(7, 4)
    for block in range(3):
        alone = blocks.single(block)
        torch.testing.assert_close(alone(x), blocks(x, torch.full((7,), block)))
        with torch.no_grad():
            assert torch.equal(alone(x), blocks(x, torch.full((7,), block)))
        assert not isinstance(alone, LinearBlocks)
        with torch.no_grad():
            next(alone.parameters()).zero_()
        assert blocks.linear(block)[0].any()  # a copy


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear])
def test_gradients_equal_finite_differences(way, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    torch.manual_seed(0)
    blocks = LinearBlocks(3, 4, 2).double()
    actions = torch.tensor([2, 0, 2, 2])
    x = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: blocks(x, actions), (x,))


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
def test_memory_layout_does_not_matter(way, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    torch.manual_seed(0)
    blocks, actions = LinearBlocks(3, 4, 5), torch.tensor([2, 0, 2, 1, 2, 0])
    x, target = torch.randn(4, 6, requires_grad=True), torch.randn(5, 6)
    expected = torch.autograd.grad((one_by_one(blocks, x.t(), actions) * target.t()).sum(), [x, *blocks.parameters()])
    blocks.blocks[2].data = blocks.blocks[2].detach().t().contiguous().t()
    found = torch.autograd.grad((blocks(x.t(), actions) * target.t()).sum(), [x, *blocks.parameters()])
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
def test_nan_and_infinity_are_not_hidden(way, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    blocks = LinearBlocks(2, 4, 5)
    with torch.no_grad():
        blocks.blocks[1][2, 3] = torch.nan
    outputs = blocks(torch.zeros(2, 4), torch.tensor([0, 1]))
    assert outputs.isnan().nonzero().tolist() == [[1, 3]]


def test_the_way_fits_type_and_samples_per_block():
    def way(count, used, dtype=torch.float32):
        route = dispatch.Route.of(torch.arange(count) % used, used, torch.device("cpu"))
        return dispatch.fastest_way(torch.empty(count, 4, dtype=dtype), route, torch.empty(5, 64, dtype=dtype))

    assert way(16, 8) is dispatch._CompiledLinear
    assert way(16, 8, torch.float64) is way(16, 8, torch.bfloat16) is dispatch._SegmentLinear
    assert way(800, 8) is dispatch._SegmentLinear


@pytest.mark.parametrize("action", [-1, 4])
def test_actions_out_of_range_are_refused(action):
    with pytest.raises(UsageError, match=r"give blocks 0\.\.2, or 3 for PASS"):
        LinearBlocks(3, 4, 4)(torch.zeros(2, 4), torch.tensor([0, action]))


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
@pytest.mark.parametrize(
    ("x", "actions", "message"),
    [
        (torch.zeros(8, 9), torch.arange(8) % 2, r"activations \(8, 9\).*give \(N, 5\)"),
        (torch.zeros(8, 4), torch.arange(8) % 2, r"activations \(8, 4\)"),
        (torch.zeros(2, 8, 4), torch.arange(2), r"activations \(16, 4\).*give \(N, 5\)"),
        (torch.zeros(8, 5), torch.arange(16) % 2, "16 actions for 8 samples"),
        (torch.zeros(8, 5), torch.arange(4) % 2, "4 actions for 8 samples"),
        (torch.zeros(8, 5, dtype=torch.float64), torch.arange(8) % 2, "float32 got activations of torch.float64"),
        (torch.zeros(4, 5), torch.zeros(4), "give \\(N,\\) integers"),
        (torch.zeros(4, 5), torch.zeros(4, dtype=torch.bool), "give \\(N,\\) integers"),
        (torch.zeros(4, 5), torch.zeros(4, 1, dtype=torch.long), "give \\(N,\\) integers"),
    ],
)
def test_what_does_not_fit_the_blocks_is_refused(way, x, actions, message, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    with pytest.raises(UsageError, match=message):
        LinearBlocks(2, 5, 3)(x, actions)


@pytest.mark.parametrize("block", [torch.zeros(6, 2), torch.zeros(6, 3, dtype=torch.float64)])
def test_blocks_of_other_shape_or_type_are_refused(block):
    blocks = LinearBlocks(2, 5, 3)
    blocks.blocks[1].data = block
    with pytest.raises(UsageError, match="blocks of a layer differ"):
        blocks(torch.zeros(2, 5), torch.tensor([0, 1]))


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_an_empty_batch_gives_an_empty_output(kind):
    blocks = LinearBlocks(2, 5, 3) if kind == "linear" else ModuleBlocks([nn.Linear(5, 3), nn.Linear(5, 3)])
    x = torch.zeros(0, 5, requires_grad=True)
    outputs = blocks(x, torch.zeros(0, dtype=torch.long))
    outputs.sum().backward()
    assert outputs.shape == (0, 3) and x.grad.shape == (0, 5)


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear, dispatch._CompiledLinear])
def test_outputs_without_relu_may_be_changed_in_place(way, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    outputs = LinearBlocks(2, 5, 3, relu=False)(torch.zeros(4, 5), torch.arange(4) % 2)
    outputs.add_(1)
    outputs.sum().backward()


@given(st.lists(st.integers(0, 5), max_size=30))
def test_a_route_sorts_samples_by_block(actions):
    route = dispatch.Route.of(torch.tensor(actions, dtype=torch.long), 5, torch.device("cpu"))
    assert route.order.tolist() == sorted(range(len(actions)), key=actions.__getitem__)  # stable
    assert route.order[route.inverse].tolist() == list(range(len(actions)))
    assert route.blocks == sorted(set(actions) - {5})
    assert route.sizes == [actions.count(block) for block in route.blocks] and route.passed == actions.count(5)


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_blocks_without_samples_get_no_gradient(kind):
    torch.manual_seed(0)
    blocks = LinearBlocks(5, 4, 4) if kind == "linear" else ModuleBlocks([nn.Linear(4, 4) for _ in range(5)])
    blocks(torch.randn(6, 4), torch.tensor([1, 3, 3, 1, 3, 5])).sum().backward()
    for block in range(5):
        for parameter in blocks.block_parameters(block):
            assert (parameter.grad is not None) == (block in (1, 3))
    active = {id(parameter) for parameter in blocks.active_parameters()}
    assert active == {id(p) for block in (1, 3) for p in blocks.block_parameters(block)}
    blocks.reset_active()
    assert not list(blocks.active_parameters())


@pytest.mark.parametrize("kind", ["linear", "module"])
def test_pass_leaves_the_activation_bit_equal(kind):
    torch.manual_seed(0)
    blocks = LinearBlocks(2, 4, 4) if kind == "linear" else ModuleBlocks([nn.Linear(4, 4), nn.Tanh()])
    x = torch.randn(5, 4)
    outputs = blocks(x, torch.tensor([2, 0, 2, 1, 2]))
    passed = torch.tensor([0, 2, 4])
    assert torch.equal(outputs[passed], x[passed])
    assert not torch.equal(outputs[1], x[1])
    assert torch.equal(blocks(x, torch.full((5,), 2)), x)


def test_module_blocks_send_each_sample_to_its_module():
    class Shift(nn.Module):
        def __init__(self, by: float) -> None:
            super().__init__()
            self.by = by

        def forward(self, x):
            return x + self.by

    blocks = ModuleBlocks([Shift(10.0), nn.Identity(), Shift(30.0)])
    x = torch.arange(8.0).reshape(4, 2)
    outputs = blocks(x, torch.tensor([2, 0, 1, 2]))
    assert torch.equal(outputs, x + torch.tensor([[30.0], [10.0], [0.0], [30.0]]))


def test_a_block_that_normalises_never_sees_an_empty_batch():
    blocks = ModuleBlocks([nn.BatchNorm1d(4) for _ in range(3)])
    assert torch.isfinite(blocks(torch.randn(4, 4), torch.tensor([0, 0, 2, 2]))).all()
    assert blocks.blocks[1].num_batches_tracked == 0


@pytest.mark.parametrize("way", [dispatch._SegmentLinear, dispatch._PaddedLinear])
def test_outputs_follow_the_precision(way, monkeypatch):
    monkeypatch.setattr(dispatch, "fastest_way", lambda *_: way)
    blocks, actions = LinearBlocks(3, 4, 4), torch.tensor([0, 1, 1])
    with torch.autocast("cpu", torch.bfloat16):
        outputs = blocks(torch.randn(3, 4), actions)
    assert outputs.dtype == torch.bfloat16
    outputs.float().sum().backward()
    assert blocks.blocks[1].grad.dtype == torch.float32
    assert blocks.to(torch.bfloat16)(torch.randn(3, 4).bfloat16(), actions).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "call", [lambda: LinearBlocks(0, 4, 4), lambda: LinearBlocks(2, 0, 4), lambda: ModuleBlocks([])]
)
def test_impossible_sizes_are_refused(call):
    with pytest.raises(UsageError, match="at least 1"):
        call()
