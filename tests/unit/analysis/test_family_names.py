"""Which kind of work a name says."""

import pytest

from analysis.names import family


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("aten::addmm", "GEMM"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
        ("aten::native_layer_norm_backward", "norm"),
        ("aten::gelu", "activation"),
        ("aten::bernoulli_", "dropout"),
        ("aten::_fused_adamw_", "optimizer"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::_log_softmax", "softmax and loss"),
        ("aten::copy_", "copy"),
        ("gloo:all_reduce", "communication"),
        ("aten::add", "elementwise"),
        ("mystery", "other"),
        # Templates name how they load and store: that says nothing about what they compute.
        ("void at::native::gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >", "elementwise"),
        ("unrolled_elementwise_kernel<BinaryFunctor, LoadWithoutCast, StoreWithoutCast>", "elementwise"),
        ("unrolled_elementwise_kernel<AddFunctor, LoadWithCast<2>, StoreWithCast<1> >", "elementwise"),
        ("void at::native::direct_copy_kernel_cuda", "copy"),
        ("triton_poi_fused__to_copy_0", "copy"),
    ],
)
def test_families_by_name(name: str, expected: str) -> None:
    assert family(name) == expected
