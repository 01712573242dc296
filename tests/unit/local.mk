# Unit tests: one cmocka program a file. `make check` runs them.
# To add one: name it in unit_tests and say what it is linked with.
if HAVE_CMOCKA
unit_tests = tests/unit/test_base
tests_unit_test_base_SOURCES = tests/unit/test_base.c
tests_unit_test_base_LDADD = libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_bootstrap
tests_unit_test_bootstrap_SOURCES = tests/unit/test_bootstrap.c
tests_unit_test_bootstrap_LDADD = libbootstrap.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_pmi2
tests_unit_test_pmi2_SOURCES = tests/unit/test_pmi2.c
tests_unit_test_pmi2_LDADD = libbootstrap.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_bound
tests_unit_test_bound_SOURCES = tests/unit/test_bound.c tests/unit/plan_fixtures.h
tests_unit_test_bound_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_deal
tests_unit_test_deal_SOURCES = tests/unit/test_deal.c tests/unit/plan_fixtures.h
tests_unit_test_deal_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_extremes
tests_unit_test_extremes_SOURCES = tests/unit/test_extremes.c tests/unit/plan_fixtures.h
tests_unit_test_extremes_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_link_classes
tests_unit_test_link_classes_SOURCES = tests/unit/test_link_classes.c tests/unit/plan_fixtures.h
tests_unit_test_link_classes_LDADD = libplan.la libmodel.la libinventory.la libbase.la \
	$(CMOCKA_LIBS)

unit_tests += tests/unit/test_model
tests_unit_test_model_SOURCES = tests/unit/test_model.c tests/unit/plan_fixtures.h
tests_unit_test_model_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_optimum
tests_unit_test_optimum_SOURCES = tests/unit/test_optimum.c tests/unit/plan_fixtures.h \
	$(bench_search)
tests_unit_test_optimum_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_plan_files
tests_unit_test_plan_files_SOURCES = tests/unit/test_plan_files.c tests/unit/plan_fixtures.h
tests_unit_test_plan_files_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_program
tests_unit_test_program_SOURCES = tests/unit/test_program.c tests/unit/plan_fixtures.h
tests_unit_test_program_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_properties
tests_unit_test_properties_SOURCES = tests/unit/test_properties.c tests/unit/valgrind.h tests/unit/plan_fixtures.h \
	$(bench_search)
tests_unit_test_properties_LDADD = libplan.la libmodel.la libinventory.la libbase.la \
	$(CMOCKA_LIBS)

unit_tests += tests/unit/test_remedy
tests_unit_test_remedy_SOURCES = tests/unit/test_remedy.c tests/unit/plan_fixtures.h
tests_unit_test_remedy_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_simulate
tests_unit_test_simulate_SOURCES = tests/unit/test_simulate.c tests/unit/plan_fixtures.h
tests_unit_test_simulate_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_chains
tests_unit_test_chains_SOURCES = tests/unit/test_chains.c tests/unit/plan_fixtures.h
tests_unit_test_chains_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_solver
tests_unit_test_solver_SOURCES = tests/unit/test_solver.c tests/unit/plan_fixtures.h
tests_unit_test_solver_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_explain
tests_unit_test_explain_SOURCES = tests/unit/test_explain.c tests/unit/plan_fixtures.h
tests_unit_test_explain_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_timeline
tests_unit_test_timeline_SOURCES = tests/unit/test_timeline.c tests/unit/plan_fixtures.h
tests_unit_test_timeline_LDADD = libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_data
tests_unit_test_data_SOURCES = tests/unit/test_data.c
tests_unit_test_data_LDADD = libruntime.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_checkpoint_files
tests_unit_test_checkpoint_files_SOURCES = tests/unit/test_checkpoint_files.c tests/unit/folder.h
tests_unit_test_checkpoint_files_LDADD = libruntime.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_emulation
tests_unit_test_emulation_SOURCES = tests/unit/test_emulation.c
tests_unit_test_emulation_LDADD = libruntime.la libinventory.la libbase.la $(CMOCKA_LIBS)

# Several ranks in one test, emulated by forked processes.
check_LTLIBRARIES += tests/emulation/libranks.la
tests_emulation_libranks_la_SOURCES = tests/emulation/ranks.c tests/emulation/ranks.h
tests_emulation_libranks_la_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests

if HAVE_UCX
unit_tests += tests/unit/test_comm
tests_unit_test_comm_SOURCES = tests/unit/test_comm.c tests/unit/comm_ranks.h
tests_unit_test_comm_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_unit_test_comm_LDADD = tests/emulation/libranks.la libcomm.la libbootstrap.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_comm_failures
tests_unit_test_comm_failures_SOURCES = tests/unit/test_comm_failures.c tests/unit/comm_ranks.h \
	tests/unit/valgrind.h
tests_unit_test_comm_failures_CPPFLAGS = $(tests_unit_test_comm_CPPFLAGS)
tests_unit_test_comm_failures_LDADD = $(tests_unit_test_comm_LDADD)

unit_tests += tests/unit/test_comm_strangers
tests_unit_test_comm_strangers_SOURCES = tests/unit/test_comm_strangers.c tests/unit/comm_ranks.h
tests_unit_test_comm_strangers_CPPFLAGS = $(tests_unit_test_comm_CPPFLAGS)
tests_unit_test_comm_strangers_CFLAGS = $(AM_CFLAGS) $(UCX_CFLAGS)
tests_unit_test_comm_strangers_LDADD = $(tests_unit_test_comm_LDADD)

if HAVE_ONEDNN
unit_tests += tests/unit/test_runtime
tests_unit_test_runtime_SOURCES = tests/unit/test_runtime.c tests/unit/valgrind.h \
	tests/unit/tiny_model.c tests/unit/tiny_model.h tests/unit/tiny_plan.h
tests_unit_test_runtime_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_unit_test_runtime_LDADD = tests/emulation/libranks.la libruntime.la libcomm.la \
	libbootstrap.la libkernels.la libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

if HAVE_CXX
gpu_run = tests/unit/gpu_run.c tests/unit/gpu_run.h tests/unit/tiny_model.h tests/unit/tiny_plan.h

unit_tests += tests/unit/test_gpu_training
tests_unit_test_gpu_training_SOURCES = tests/unit/test_gpu_training.c tests/unit/valgrind.h \
	$(gpu_run)
tests_unit_test_gpu_training_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests \
	-DEMULATED_MODULE='"$(abs_builddir)/tests/emulation/cuda/.libs/libethhpp_cuda.so"'
tests_unit_test_gpu_training_LDADD = libmodels.la $(tests_unit_test_runtime_LDADD)
tests_unit_test_gpu_training_DEPENDENCIES = $(tests_unit_test_gpu_training_LDADD) \
	tests/emulation/cuda/libethhpp_cuda.la

unit_tests += tests/unit/test_gpu_module
tests_unit_test_gpu_module_SOURCES = tests/unit/test_gpu_module.c tests/unit/valgrind.h $(gpu_run)
tests_unit_test_gpu_module_CPPFLAGS = $(tests_unit_test_gpu_training_CPPFLAGS)
tests_unit_test_gpu_module_LDADD = $(tests_unit_test_gpu_training_LDADD)
tests_unit_test_gpu_module_DEPENDENCIES = $(tests_unit_test_gpu_training_DEPENDENCIES)

unit_tests += tests/unit/test_nccl
tests_unit_test_nccl_SOURCES = tests/unit/test_nccl.c tests/unit/nccl_ranks.h \
	tests/unit/comm_ranks.h
tests_unit_test_nccl_CPPFLAGS = $(tests_unit_test_gpu_training_CPPFLAGS)
tests_unit_test_nccl_LDADD = $(tests_unit_test_gpu_training_LDADD)
tests_unit_test_nccl_DEPENDENCIES = $(tests_unit_test_gpu_training_DEPENDENCIES)

if HAVE_CUDA
unit_tests += tests/unit/test_nccl_api
tests_unit_test_nccl_api_SOURCES = tests/unit/test_nccl_api.c
tests_unit_test_nccl_api_CPPFLAGS = $(AM_CPPFLAGS) -isystem $(CUDA_LIBDIR)/../include
tests_unit_test_nccl_api_LDADD = $(CMOCKA_LIBS)
endif

unit_tests += tests/unit/test_nccl_failures
tests_unit_test_nccl_failures_SOURCES = tests/unit/test_nccl_failures.c tests/unit/nccl_ranks.h \
	tests/unit/comm_ranks.h tests/unit/folder.h tests/unit/valgrind.h
tests_unit_test_nccl_failures_CPPFLAGS = $(tests_unit_test_gpu_training_CPPFLAGS)
tests_unit_test_nccl_failures_LDADD = $(tests_unit_test_gpu_training_LDADD)
tests_unit_test_nccl_failures_DEPENDENCIES = $(tests_unit_test_gpu_training_DEPENDENCIES)

unit_tests += tests/unit/test_emulated_nccl
tests_unit_test_emulated_nccl_SOURCES = tests/unit/test_emulated_nccl.c tests/unit/folder.h \
	tests/unit/valgrind.h
tests_unit_test_emulated_nccl_CPPFLAGS = $(tests_unit_test_gpu_training_CPPFLAGS)
tests_unit_test_emulated_nccl_LDADD = $(tests_unit_test_gpu_training_LDADD)
tests_unit_test_emulated_nccl_DEPENDENCIES = $(tests_unit_test_gpu_training_DEPENDENCIES)

unit_tests += tests/unit/test_gpu_precision
tests_unit_test_gpu_precision_SOURCES = tests/unit/test_gpu_precision.c tests/unit/valgrind.h \
	tests/unit/folder.h $(gpu_run)
tests_unit_test_gpu_precision_CPPFLAGS = $(tests_unit_test_gpu_training_CPPFLAGS)
tests_unit_test_gpu_precision_LDADD = $(tests_unit_test_gpu_training_LDADD)
tests_unit_test_gpu_precision_DEPENDENCIES = $(tests_unit_test_gpu_training_DEPENDENCIES)
endif

unit_tests += tests/unit/test_checkpoint
tests_unit_test_checkpoint_SOURCES = tests/unit/test_checkpoint.c tests/unit/valgrind.h tests/unit/folder.h \
	tests/unit/tiny_model.c tests/unit/tiny_model.h tests/unit/tiny_plan.h
tests_unit_test_checkpoint_CPPFLAGS = $(tests_unit_test_runtime_CPPFLAGS)
tests_unit_test_checkpoint_LDADD = $(tests_unit_test_runtime_LDADD)
endif
endif

if HAVE_ONEDNN
unit_tests += tests/unit/test_kernels
tests_unit_test_kernels_SOURCES = tests/unit/test_kernels.c tests/unit/gradient_check.h \
	tests/unit/kernels64.h
tests_unit_test_kernels_LDADD = libkernels64.la libkernels.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_kernels_attention
tests_unit_test_kernels_attention_SOURCES = tests/unit/test_kernels_attention.c \
	tests/unit/gradient_check.h tests/unit/kernels64.h
tests_unit_test_kernels_attention_LDADD = $(tests_unit_test_kernels_LDADD)

unit_tests += tests/unit/test_kernels_float
tests_unit_test_kernels_float_SOURCES = tests/unit/test_kernels_float.c tests/unit/valgrind.h
tests_unit_test_kernels_float_LDADD = libkernels.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_kernels_threads
tests_unit_test_kernels_threads_SOURCES = tests/unit/test_kernels_threads.c tests/unit/valgrind.h
tests_unit_test_kernels_threads_LDADD = libkernels.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_transformer
tests_unit_test_transformer_SOURCES = tests/unit/test_transformer.c tests/unit/gradient_check.h \
	tests/unit/stage_context.h tests/unit/tiny_transformer.h
tests_unit_test_transformer_LDADD = libmodels.la libkernels64.la libkernels.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_memory
tests_unit_test_memory_SOURCES = tests/unit/test_memory.c tests/unit/plan_fixtures.h \
	tests/emulation/agreeing_transport.h
tests_unit_test_memory_LDADD = libmodels.la libruntime.la libcomm.la libbootstrap.la libkernels.la \
	libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_overlap
tests_unit_test_overlap_SOURCES = tests/unit/test_overlap.c tests/unit/plan_fixtures.h \
	tests/emulation/agreeing_transport.h
tests_unit_test_overlap_LDADD = $(tests_unit_test_memory_LDADD)

unit_tests += tests/unit/test_transformer_recorded
tests_unit_test_transformer_recorded_SOURCES = tests/unit/test_transformer_recorded.c \
	tests/unit/gradient_check.h tests/unit/stage_context.h tests/unit/tiny_transformer.h
tests_unit_test_transformer_recorded_LDADD = $(tests_unit_test_transformer_LDADD)

unit_tests += tests/unit/test_transformer_create
tests_unit_test_transformer_create_SOURCES = tests/unit/test_transformer_create.c tests/unit/stage_context.h \
	tests/unit/tiny_transformer.h
tests_unit_test_transformer_create_LDADD = $(tests_unit_test_transformer_LDADD)

unit_tests += tests/unit/test_train
tests_unit_test_train_SOURCES = tests/unit/test_train.c tests/unit/valgrind.h
tests_unit_test_train_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_unit_test_train_LDADD = libmodels.la libethhpp.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_init_from
tests_unit_test_init_from_SOURCES = tests/unit/test_init_from.c tests/unit/folder.h
tests_unit_test_init_from_CPPFLAGS = $(AM_CPPFLAGS) -DRECORDED='"$(abs_srcdir)/tests/recorded"'
tests_unit_test_init_from_LDADD = libmodels.la libruntime.la libcomm.la libbootstrap.la \
	libkernels.la libplan.la libmodel.la libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_transformer_measure
tests_unit_test_transformer_measure_SOURCES = tests/unit/test_transformer_measure.c
tests_unit_test_transformer_measure_LDADD = libmodels.la libkernels.la libbase.la $(CMOCKA_LIBS)
endif
unit_tests += tests/unit/test_sysfs
tests_unit_test_sysfs_SOURCES = tests/unit/test_sysfs.c
tests_unit_test_sysfs_LDADD = libinventory.la libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_inventory
tests_unit_test_inventory_SOURCES = tests/unit/test_inventory.c
tests_unit_test_inventory_CPPFLAGS = $(AM_CPPFLAGS) \
	-DNVML_EMULATION='"$(abs_builddir)/tests/emulation/.libs/libnvidia-ml.so.1"'
tests_unit_test_inventory_LDADD = libinventory.la libbase.la $(CMOCKA_LIBS)
tests_unit_test_inventory_DEPENDENCIES = libinventory.la libbase.la \
	tests/emulation/libnvidia-ml.la

unit_tests += tests/unit/test_launch
tests_unit_test_launch_SOURCES = tests/unit/test_launch.c
tests_unit_test_launch_CPPFLAGS = $(tests_unit_test_inventory_CPPFLAGS)
tests_unit_test_launch_LDADD = $(launcher_libs) $(CMOCKA_LIBS)
tests_unit_test_launch_DEPENDENCIES = $(launcher_libs) tests/emulation/libnvidia-ml.la

if HAVE_ONEDNN
unit_tests += tests/unit/test_calibrate
tests_unit_test_calibrate_SOURCES = tests/unit/test_calibrate.c tests/unit/valgrind.h
tests_unit_test_calibrate_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_unit_test_calibrate_LDADD = $(launcher_libs) $(CMOCKA_LIBS)
endif

unit_tests += tests/unit/test_exchange
tests_unit_test_exchange_SOURCES = tests/unit/test_exchange.c
tests_unit_test_exchange_CPPFLAGS = $(AM_CPPFLAGS) -I$(srcdir)/tests
tests_unit_test_exchange_LDADD = liblauncher.la tests/emulation/libranks.la libbootstrap.la \
	libbase.la $(CMOCKA_LIBS)

unit_tests += tests/unit/test_progress
tests_unit_test_progress_SOURCES = tests/unit/test_progress.c
tests_unit_test_progress_LDADD = liblauncher.la libbase.la $(CMOCKA_LIBS)

# An emulated NVML under the real one's file name; -rpath makes libtool build it shared.
check_LTLIBRARIES += tests/emulation/libnvidia-ml.la
tests_emulation_libnvidia_ml_la_SOURCES = tests/emulation/nvml.c
tests_emulation_libnvidia_ml_la_CFLAGS = $(AM_CFLAGS) -fvisibility=default
tests_emulation_libnvidia_ml_la_LDFLAGS = -version-info 1 -rpath /nowhere

# The plugin's parts, with Slurm's side of SPANK emulated.
if HAVE_SLURM
unit_tests += tests/unit/test_spank
tests_unit_test_spank_SOURCES = tests/unit/test_spank.c \
	tests/emulation/spank_double.c tests/emulation/spank_double.h \
	$(spank_parts)
tests_unit_test_spank_CPPFLAGS = $(spank_eth_hpp_la_CPPFLAGS)
tests_unit_test_spank_LDADD = libinventory.la libmodel.la libbase.la $(CMOCKA_LIBS)
endif

check_PROGRAMS += $(unit_tests)
TESTS += $(unit_tests)
endif

TESTS += tests/unit/test_configure.sh tests/unit/test_completion.sh tests/unit/test_documents.sh tests/unit/test_hostile_files.sh tests/unit/test_manual.sh tests/unit/test_show.sh tests/unit/test_start.sh tests/unit/test_streams.sh
EXTRA_DIST += tests/unit/test_configure.sh tests/unit/test_completion.sh tests/unit/test_documents.sh tests/unit/test_hostile_files.sh tests/unit/test_manual.sh tests/unit/test_show.sh tests/unit/test_start.sh tests/unit/test_streams.sh
