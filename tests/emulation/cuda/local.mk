# The GPU module's kernels on the host, without a toolkit.
emulated_headers = \
	tests/emulation/cuda/include/cublasLt.h \
	tests/emulation/cuda/include/cuda_bf16.h \
	tests/emulation/cuda/include/cuda_fp16.h \
	tests/emulation/cuda/include/cuda_runtime.h \
	tests/emulation/nccl/nccl.h \
	tests/emulation/cuda/simt.h
EXTRA_DIST += $(emulated_headers)

if HAVE_CXX
if HAVE_ONEDNN
emulated_cppflags = -I$(srcdir)/tests/emulation/cuda/include $(AM_CPPFLAGS)
emulated_cxxflags = -std=c++17 $(WARN_CXXFLAGS) -Wno-unknown-pragmas -ffp-contract=off
check_LTLIBRARIES += libcuda_emulated.la
libcuda_emulated_la_SOURCES = $(cuda_kernels) \
	tests/emulation/cuda/cublaslt.cc \
	tests/emulation/nccl/nccl.cc \
	tests/emulation/nccl/operations.cc \
	tests/emulation/cuda/runtime.cc \
	tests/emulation/cuda/simt.cc
libcuda_emulated_la_CPPFLAGS = $(emulated_cppflags)
libcuda_emulated_la_CXXFLAGS = $(emulated_cxxflags)

.cu.lo:
	$(AM_V_CXX)$(LIBTOOL) $(AM_V_lt) --tag=CXX --mode=compile $(CXX) $(DEFS) -I. \
		$(emulated_cppflags) $(CPPFLAGS) $(emulated_cxxflags) $(CXXFLAGS) -x c++ -c -o $@ $<
$(libcuda_emulated_la_OBJECTS): $(cuda_headers) $(emulated_headers)

# The module, under its name; -rpath makes libtool build it shared. none.cc is not there: it makes Automake link as C++.
check_LTLIBRARIES += tests/emulation/cuda/libethhpp_cuda.la
tests_emulation_cuda_libethhpp_cuda_la_SOURCES =
nodist_EXTRA_tests_emulation_cuda_libethhpp_cuda_la_SOURCES = tests/emulation/cuda/none.cc
tests_emulation_cuda_libethhpp_cuda_la_LIBADD = libcuda_emulated.la libcuda_module.la
tests_emulation_cuda_libethhpp_cuda_la_LDFLAGS = -module -avoid-version -rpath /nowhere
endif
endif
