noinst_LTLIBRARIES += libruntime.la
libruntime_la_SOURCES = \
	lib/runtime/arena.c lib/runtime/arena.h \
	lib/runtime/capabilities.c lib/runtime/capabilities.h \
	lib/runtime/checkpoint.c \
	lib/runtime/checkpoint_file.c lib/runtime/checkpoint_file.h \
	lib/runtime/checkpoint_folder.c lib/runtime/checkpoint_folder.h \
	lib/runtime/checkpoint_load.c \
	lib/runtime/checkpoint_write.c lib/runtime/checkpoint_write.h \
	lib/runtime/compute.c \
	lib/runtime/context.c lib/runtime/context.h \
	lib/runtime/data.c lib/runtime/data.h \
	lib/runtime/device.c \
	lib/runtime/emulation.c lib/runtime/emulation.h \
	lib/runtime/executor.c \
	lib/runtime/executor_open.c \
	lib/runtime/handover.c \
	lib/runtime/init.c \
	lib/runtime/leave.c \
	lib/runtime/loss_scale.c \
	lib/runtime/optimizer.c \
	lib/runtime/register.c \
	lib/runtime/replicas.c \
	lib/runtime/safetensors.c lib/runtime/safetensors.h lib/runtime/safetensors_write.c \
	lib/runtime/sync.c \
	lib/runtime/tensor_set.c lib/runtime/tensor_set.h \
	lib/runtime/transport.c \
	lib/runtime/weights.c
