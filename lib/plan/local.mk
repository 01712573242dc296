# Plans as pure functions of files: no Slurm, PMIx, NCCL, CUDA or threads here.
noinst_LTLIBRARIES += libplan.la
libplan_la_SOURCES = \
	lib/plan/cluster.c lib/plan/cluster.h lib/plan/cluster_file.c \
	lib/plan/profile.c lib/plan/profile.h lib/plan/profile_file.c
libplan_la_LIBADD = libinventory.la libbase.la
