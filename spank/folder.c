/* /run/eth-hpp: the inventories of the jobs on a node, each in a folder that only root can change
 * and only the job's user can look into. */
#include "spank/plugin.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/log.h"

enum { PATH_BYTES = 256 };

bool eth_hpp_node_is_plain_name(const char *name)
{
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    return name != NULL && name[0] != '\0' && name[0] != '.' && strlen(name) < 128 &&
           strspn(name, allowed) == strlen(name);
}

bool eth_hpp_node_inventory_path(uint32_t job, const char *node, char *path, size_t size)
{
    return eth_hpp_node_is_plain_name(node) &&
           snprintf(path, size, ETH_HPP_RUN_FOLDER "/%u/%s.json", job, node) < (int)size;
}

static void job_folder(uint32_t job, char *path, size_t size)
{
    snprintf(path, size, ETH_HPP_RUN_FOLDER "/%u", job);
}

/* A folder that nobody but root can change. Where there is something else it says so. */
static bool is_roots_folder(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        if (errno != ENOENT)
            eth_hpp_log_error("cannot look at %s: %m", path);
        return false;
    }
    if (S_ISDIR(info.st_mode) && info.st_uid == 0 && (info.st_mode & (S_IWGRP | S_IWOTH)) == 0)
        return true;
    eth_hpp_log_error("%s is not a folder that only root can change: remove it", path);
    return false;
}

static bool make_roots_folder(const char *path)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return is_roots_folder(path);
    eth_hpp_log_error("cannot make the folder %s: %m", path);
    return false;
}

/* Lets one user through to the files in a folder of root's, and nobody else: by an access control
 * list, since others may be in the user's group too. It sets the folder's mode with it, all at
 * once.
 */
static int let_through(const char *path, uid_t user)
{
    enum { ENTRIES = 5 };
    const uint32_t none = htole32(ACL_UNDEFINED_ID);
    const uint16_t all = htole16(ACL_READ | ACL_WRITE | ACL_EXECUTE);
    const uint16_t pass = htole16(ACL_EXECUTE);
    const struct {
        struct posix_acl_xattr_header header;
        struct posix_acl_xattr_entry entries[ENTRIES];
    } list = {{htole32(POSIX_ACL_XATTR_VERSION)},
              {{htole16(ACL_USER_OBJ), all, none},
               {htole16(ACL_USER), pass, htole32(user)},
               {htole16(ACL_GROUP_OBJ), 0, none},
               {htole16(ACL_MASK), pass, none},
               {htole16(ACL_OTHER), 0, none}}};
    return setxattr(path, "system.posix_acl_access", &list, sizeof(list), 0);
}

bool eth_hpp_folder_make(uint32_t job, uid_t user)
{
    char path[PATH_BYTES];
    job_folder(job, path, sizeof(path));
    if (!make_roots_folder(ETH_HPP_RUN_FOLDER))
        return false;
    /* Users have to reach their own folders, whatever slurmd's umask is, but not to list those of
     * others. */
    if (chmod(ETH_HPP_RUN_FOLDER, 0711) != 0) {
        eth_hpp_log_error("cannot let users into %s: %m", ETH_HPP_RUN_FOLDER);
        return false;
    }
    if (!make_roots_folder(path))
        return false;
    if (let_through(path, user) == 0)
        return true;
    eth_hpp_log_error("cannot let user %u into %s: %m", (unsigned)user, path);
    return false;
}

/* The inventory, and what was being written where its writer was killed. */
static void remove_files(const char *folder, const char *node)
{
    const size_t length = strlen(node);
    DIR *files = opendir(folder);
    if (files == NULL) {
        eth_hpp_log_error("cannot open %s: %m", folder);
        return;
    }
    for (const struct dirent *file; (file = readdir(files)) != NULL;)
        if (strncmp(file->d_name, node, length) == 0 &&
            strncmp(file->d_name + length, ".json", 5) == 0 &&
            unlinkat(dirfd(files), file->d_name, 0) != 0)
            eth_hpp_log_error("cannot remove %s/%s: %m", folder, file->d_name);
    closedir(files);
}

void eth_hpp_folder_remove(uint32_t job, const char *node)
{
    char path[PATH_BYTES];
    job_folder(job, path, sizeof(path));
    /* Most jobs have none. */
    if (!is_roots_folder(ETH_HPP_RUN_FOLDER) || !is_roots_folder(path))
        return;
    remove_files(path, node);
    /* Nodes that share a machine share the folder. */
    if (rmdir(path) != 0 && errno != ENOENT && errno != ENOTEMPTY)
        eth_hpp_log_error("cannot remove %s: %m", path);
}
