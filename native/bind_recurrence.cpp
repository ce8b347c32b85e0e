// cortext._native.{can_run_recurrence, recurrence_forward, recurrence_backward}.
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "bind.hpp"
#include "recurrence.hpp"

namespace nb = nanobind;

namespace cortext {

namespace {

using Starts = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using VectorOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MatrixOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// bfloat16 arrives as its bits: numpy and other libraries have no such type.
using Halves = nb::ndarray<const std::int16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using HalvesOut = nb::ndarray<std::int16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename Array>
void check(const Array& array, std::size_t n_rows, std::size_t n_columns, const char* name) {
    if (array.shape(0) != n_rows || array.shape(1) != n_columns) {
        throw std::invalid_argument(std::string(name) + " has a wrong shape");
    }
    require_aligned(array, name);
}

template <typename Array>
void check(const Array& array, std::size_t n_numbers, const char* name) {
    if (array.shape(0) != n_numbers)
        throw std::invalid_argument(std::string(name) + " has a wrong shape");
    require_aligned(array, name);
}

RecurrentLayer to_layer(const Starts& starts, const Matrix& h0_BD, const Matrix& w_hh_GD,
                        std::size_t n_rows) {
    const std::size_t B = h0_BD.shape(0), D = h0_BD.shape(1);
    check(h0_BD, B, D, "h0_BD");
    check(w_hh_GD, 3 * D, D, "w_hh_GD");
    if (!can_run_recurrence() || D == 0 || D % unit_multiple != 0) {
        throw std::invalid_argument("this number of units or this processor is not supported");
    }
    if (starts.shape(0) != B + 1)
        throw std::invalid_argument("starts must have one more number than there are trials");
    require_aligned(starts, "starts");
    for (std::size_t b = 0; b <= B; ++b) {
        const std::int64_t least = b == 0 ? 0 : starts(b - 1),
                           most = static_cast<std::int64_t>(n_rows);
        if (starts(b) < least || starts(b) > most || (b == 0 && starts(b) != 0) ||
            (b == B && starts(b) != most)) {
            throw std::invalid_argument("starts must rise from 0 to the number of rows");
        }
    }
    return {D, B, starts.data(), h0_BD.data(), w_hh_GD.data()};
}

const bfloat16* bits(const Halves& halves) {
    return reinterpret_cast<const bfloat16*>(halves.data());
}
bfloat16* bits(const HalvesOut& halves) { return reinterpret_cast<bfloat16*>(halves.data()); }

void forward(const Starts& starts, const Halves& input_NG, const Matrix& h0_BD,
             const Matrix& w_hh_GD, const Vector& b_hh_G, const MatrixOut& h_ND,
             const HalvesOut& h_before_ND, const MatrixOut& gates_N4D, std::size_t n_threads) {
    const std::size_t N = input_NG.shape(0), D = h0_BD.shape(1);
    const RecurrentLayer layer = to_layer(starts, h0_BD, w_hh_GD, N);
    check(input_NG, N, 3 * D, "input_NG");
    check(h_ND, N, D, "h_ND");
    check(h_before_ND, N, D, "h_before_ND");
    check(gates_N4D, N, 4 * D, "gates_N4D");
    check(b_hh_G, 3 * D, "b_hh_G");
    const ForwardPass pass{bits(input_NG), b_hh_G.data(), h_ND.data(), bits(h_before_ND),
                           gates_N4D.data()};
    nb::gil_scoped_release released;
    run_forward(layer, pass, n_threads);
}

void backward(const Starts& starts, const Matrix& d_h_ND, const Matrix& h0_BD,
              const Matrix& w_hh_GD, const Matrix& h_ND, const Matrix& gates_N4D,
              const HalvesOut& d_input_NG, const HalvesOut& d_recurrent_NG,
              const MatrixOut& d_h0_BD, const VectorOut& d_b_hh_G, std::size_t n_threads) {
    const std::size_t N = h_ND.shape(0), B = h0_BD.shape(0), D = h0_BD.shape(1);
    const RecurrentLayer layer = to_layer(starts, h0_BD, w_hh_GD, N);
    check(d_h_ND, N, D, "d_h_ND");
    check(h_ND, N, D, "h_ND");
    check(gates_N4D, N, 4 * D, "gates_N4D");
    check(d_input_NG, N, 3 * D, "d_input_NG");
    check(d_recurrent_NG, N, 3 * D, "d_recurrent_NG");
    check(d_h0_BD, B, D, "d_h0_BD");
    check(d_b_hh_G, 3 * D, "d_b_hh_G");
    const BackwardPass pass{d_h_ND.data(),    h_ND.data(),          gates_N4D.data(),
                            bits(d_input_NG), bits(d_recurrent_NG), d_h0_BD.data(),
                            d_b_hh_G.data()};
    nb::gil_scoped_release released;
    run_backward(layer, pass, n_threads);
}

}  // namespace

void bind_recurrence(nb::module_& module) {
    module.def("can_run_recurrence", &can_run_recurrence);
    module.attr("recurrence_unit_multiple") = unit_multiple;
    module.def("recurrence_forward", &forward, nb::arg("starts").noconvert(),
               nb::arg("input_NG").noconvert(), nb::arg("h0_BD").noconvert(),
               nb::arg("w_hh_GD").noconvert(), nb::arg("b_hh_G").noconvert(),
               nb::arg("h_ND").noconvert(), nb::arg("h_before_ND").noconvert(),
               nb::arg("gates_N4D").noconvert(), nb::arg("n_threads"));
    module.def("recurrence_backward", &backward, nb::arg("starts").noconvert(),
               nb::arg("d_h_ND").noconvert(), nb::arg("h0_BD").noconvert(),
               nb::arg("w_hh_GD").noconvert(), nb::arg("h_ND").noconvert(),
               nb::arg("gates_N4D").noconvert(), nb::arg("d_input_NG").noconvert(),
               nb::arg("d_recurrent_NG").noconvert(), nb::arg("d_h0_BD").noconvert(),
               nb::arg("d_b_hh_G").noconvert(), nb::arg("n_threads"));
}

}  // namespace cortext
