// cortext._native.{StepGRU, StepEmbedding, StepTransformer, StepLinear}.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "bind.hpp"
#include "processor.hpp"
#include "step_gru.hpp"
#include "step_transformer.hpp"

namespace nb = nanobind;

namespace cortext {

namespace {

using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using VectorOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FramesOut = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using MatrixOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* name) {
    if (!holds) throw std::invalid_argument(std::string(name) + " has a wrong shape");
}

// An array of a shape, at which it can be read.
template <typename Array>
void require(const Array& array, bool has_shape, const char* name) {
    require(has_shape, name);
    require_aligned(array, name);
}

Weights weights_as(const std::string& name) {
    if (name == "fp32") return Weights::float32;
    if (name == "bf16") return Weights::bfloat16;
    if (name == "int8") return Weights::int8;
    throw std::invalid_argument("kept_as is none of fp32, bf16 and int8");
}

StepLinear linear(const Matrix& weight, const std::optional<Vector>& bias, std::size_t n_blocks,
                  const std::string& kept_as) {
    require(weight, weight.shape(0) > 0 && weight.shape(1) > 0 && weight.shape(0) % n_blocks == 0,
            "weight");
    if (bias) require(*bias, bias->shape(0) == weight.shape(0), "bias");
    return {weight.data(),   bias ? bias->data() : nullptr,
            n_blocks,        weight.shape(0) / n_blocks,
            weight.shape(1), weights_as(kept_as)};
}

// Whether weights are fetched by hints.
template <typename Layer>
void set_prefetch(Layer& self, bool by_hints) {
    self.set_prefetch(by_hints ? Prefetch::by_hints : Prefetch::by_processor);
}

using LayerWeights = std::tuple<Matrix, Matrix, Vector, Vector>;

std::vector<StepGRU::Layer> gru_layers(const std::vector<LayerWeights>& layers,
                                       const std::string& kept_as) {
    require(!layers.empty(), "layers");
    const std::size_t n_units = std::get<1>(layers.front()).shape(1);
    std::vector<StepGRU::Layer> found;
    for (const auto& [w_ih, w_hh, b_ih, b_hh] : layers) {
        require(w_ih.shape(0) == 3 * n_units && (found.empty() || w_ih.shape(1) == n_units),
                "w_ih");
        require(w_hh.shape(0) == 3 * n_units && w_hh.shape(1) == n_units, "w_hh");
        found.push_back({linear(w_ih, b_ih, 3, kept_as), linear(w_hh, b_hh, 3, kept_as)});
    }
    return found;
}

void step(StepGRU& self, const Vector& x, const Matrix& state_LD, const MatrixOut& next_state_LD) {
    require(x, x.shape(0) == self.n_inputs(), "x");
    require(state_LD, state_LD.shape(0) == self.n_layers() && state_LD.shape(1) == self.n_units(),
            "state_LD");
    require(next_state_LD,
            next_state_LD.shape(0) == self.n_layers() && next_state_LD.shape(1) == self.n_units(),
            "next_state_LD");
    nb::gil_scoped_release released;
    self.step(x.data(), state_LD.data(), next_state_LD.data());
}

StepNorm norm_of(const Vector& weight, const Vector& bias, float epsilon) {
    require(weight, weight.shape(0) > 0, "norm");
    require(bias, bias.shape(0) == weight.shape(0), "norm");
    return {weight.data(), bias.data(), weight.shape(0), epsilon};
}

using NormWeights = std::tuple<Vector, Vector>;

StepNorm norm_of(const NormWeights& norm, float epsilon) {
    return norm_of(std::get<0>(norm), std::get<1>(norm), epsilon);
}

void embed(const StepEmbedding& self, const Vector& x, const VectorOut& y) {
    require(x, x.shape(0) == self.n_inputs(), "x");
    require(y, y.shape(0) == self.n_units(), "y");
    nb::gil_scoped_release released;
    self.apply(x.data(), y.data());
}

using BlockWeights = std::tuple<Vector, Vector, Matrix, Vector, Matrix, Vector, Vector, Vector,
                                Matrix, Vector, Matrix, Vector>;

std::vector<StepTransformer::Block> transformer_blocks(const std::vector<BlockWeights>& blocks,
                                                       float epsilon, const std::string& kept_as) {
    std::vector<StepTransformer::Block> found;
    for (const auto& [norm_w, norm_b, qkv, distance_bias, attended_w, attended_b, forward_norm_w,
                      forward_norm_b, widen_w, widen_b, narrow_w, narrow_b] : blocks) {
        require(distance_bias, distance_bias.shape(0) > 0, "distance_bias");
        const float* const distances = distance_bias.data();
        found.push_back({norm_of(norm_w, norm_b, epsilon), linear(qkv, std::nullopt, 3, kept_as),
                         std::vector<float>(distances, distances + distance_bias.shape(0)),
                         linear(attended_w, attended_b, 1, kept_as),
                         norm_of(forward_norm_w, forward_norm_b, epsilon),
                         linear(widen_w, widen_b, 1, kept_as),
                         linear(narrow_w, narrow_b, 1, kept_as)});
    }
    return found;
}

void step_frame(const StepTransformer& self, const Vector& x, const FramesOut& keys_LRI,
                const FramesOut& values_LRI, std::size_t row, std::size_t n_before,
                const VectorOut& y) {
    require(x, x.shape(0) == self.n_units(), "x");
    require(y, y.shape(0) == self.n_units(), "y");
    const std::size_t n_rows = keys_LRI.shape(1);
    for (const auto& [frames, name] : {std::pair(keys_LRI, "keys_LRI"), {values_LRI, "values_LRI"}})
        require(frames,
                frames.shape(0) == self.n_layers() && frames.shape(1) == n_rows &&
                    frames.shape(2) == self.width(),
                name);
    if (row >= n_rows) throw std::invalid_argument("row is not one of the rows");
    if (n_before > row) throw std::invalid_argument("n_before is more than the rows before");
    nb::gil_scoped_release released;
    self.step(x.data(), {keys_LRI.data(), values_LRI.data(), n_rows, row, n_before}, y.data());
}

void apply(const StepLinear& self, const Vector& x, const VectorOut& y) {
    require(x, x.shape(0) == self.matrix().n_columns(), "x");
    require(y, y.shape(0) == self.n_rows(), "y");
    nb::gil_scoped_release released;
    const float* const end = x.data() + x.shape(0);
    if (std::any_of(x.data(), end,
                    [](float number) { return std::isnan(number); })) {  // a step that is prepared
        std::fill_n(y.data(), y.shape(0), std::numeric_limits<float>::quiet_NaN());
        return;
    }
    std::vector<float> filled_up(self.matrix().size());
    self.apply(x.data(), filled_up.data());
    std::copy_n(filled_up.data(), y.shape(0), y.data());
}

}  // namespace

void bind_step(nb::module_& module) {
    module.def("vector_lanes", &vector_lanes);
    module.def("use_vector_lanes", &use_vector_lanes, nb::arg("lanes"));
    nb::class_<StepGRU>(module, "StepGRU")
        .def(
            "__init__",
            [](StepGRU* self, const std::vector<LayerWeights>& layers, const std::string& kept_as) {
                new (self) StepGRU(gru_layers(layers, kept_as));
            },
            nb::arg("layers"), nb::arg("kept_as"))
        .def("set_prefetch", &set_prefetch<StepGRU>, nb::arg("by_hints"))
        .def("step", &step, nb::arg("x").noconvert(), nb::arg("state_LD").noconvert(),
             nb::arg("next_state_LD").noconvert());
    nb::class_<StepEmbedding>(module, "StepEmbedding")
        .def(
            "__init__",
            [](StepEmbedding* self, const NormWeights& patch_norm, const Matrix& weight,
               const Vector& bias, const NormWeights& norm, float epsilon,
               const std::string& kept_as) {
                new (self) StepEmbedding(norm_of(patch_norm, epsilon),
                                         linear(weight, bias, 1, kept_as), norm_of(norm, epsilon));
            },
            nb::arg("patch_norm"), nb::arg("weight").noconvert(), nb::arg("bias").noconvert(),
            nb::arg("norm"), nb::arg("epsilon"), nb::arg("kept_as"))
        .def("set_prefetch", &set_prefetch<StepEmbedding>, nb::arg("by_hints"))
        .def("apply", &embed, nb::arg("x").noconvert(), nb::arg("y").noconvert());
    nb::class_<StepTransformer>(module, "StepTransformer")
        .def(
            "__init__",
            [](StepTransformer* self, const std::vector<BlockWeights>& blocks,
               const NormWeights& norm, float epsilon, std::size_t n_heads,
               const std::string& kept_as) {
                new (self) StepTransformer(transformer_blocks(blocks, epsilon, kept_as),
                                           norm_of(norm, epsilon), n_heads);
            },
            nb::arg("blocks"), nb::arg("norm"), nb::arg("epsilon"), nb::arg("n_heads"),
            nb::arg("kept_as"))
        .def("set_prefetch", &set_prefetch<StepTransformer>, nb::arg("by_hints"))
        .def("step", &step_frame, nb::arg("x").noconvert(), nb::arg("keys_LRI").noconvert(),
             nb::arg("values_LRI").noconvert(), nb::arg("row"), nb::arg("n_before"),
             nb::arg("y").noconvert());
    nb::class_<StepLinear>(module, "StepLinear")
        .def(
            "__init__",
            [](StepLinear* self, const Matrix& weight, const std::optional<Vector>& bias,
               const std::string& kept_as) {
                new (self) StepLinear(linear(weight, bias, 1, kept_as));
            },
            nb::arg("weight").noconvert(), nb::arg("bias").none(), nb::arg("kept_as"))
        .def("set_prefetch", &set_prefetch<StepLinear>, nb::arg("by_hints"))
        .def("apply", &apply, nb::arg("x").noconvert(), nb::arg("y").noconvert());
}

}  // namespace cortext
