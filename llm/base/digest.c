/* Digests of data in memory, of files and of folders. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* FNV-1a, of 64 bits. */
uint64_t zf_digest_bytes(uint64_t digest, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++) digest = (digest ^ at[i]) * UINT64_C(0x100000001b3);
    return digest;
}

static bool zfl_digest_file(const char *path, uint64_t *digest, zf_error *error)
{
    static const size_t room = 1 << 20;
    FILE *file = fopen(path, "rb");
    char *piece = malloc(room);
    size_t n = 0;
    bool good = file && piece;
    while (good && (n = fread(piece, 1, room, file)) > 0)
        *digest = zf_digest_bytes(*digest, piece, n);
    good = good && !ferror(file);
    if (!good) {
        error->status = ZF_ERR_IO;
        snprintf(error->text, sizeof error->text, "%.300s: %s", path, strerror(errno));
    }
    if (file) fclose(file);
    free(piece);
    return good;
}

static bool zfl_ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), end = strlen(ending);
    return length > end && !strcmp(name + length - end, ending);
}

/* The sum of the files' digests, since their order depends on the file system. */
static bool zfl_digest_directory(const char *path, uint64_t *digest, zf_error *error)
{
    char inside[4096];
    struct stat about;
    struct dirent *entry;
    DIR *directory;
    bool good = true;
    snprintf(inside, sizeof inside, "%s/manifest.json", path);
    if (!stat(inside, &about)) return zfl_digest_file(inside, digest, error);
    if (!(directory = opendir(path))) {
        error->status = ZF_ERR_IO;
        snprintf(error->text, sizeof error->text, "%.300s: %s", path, strerror(errno));
        return false;
    }
    while (good && (entry = readdir(directory))) {
        uint64_t one = zf_digest_bytes(ZF_DIGEST_START, entry->d_name, strlen(entry->d_name));
        if (!zfl_ends_with(entry->d_name, ".json") && !zfl_ends_with(entry->d_name, ".safetensors"))
            continue;
        snprintf(inside, sizeof inside, "%.2048s/%.2000s", path, entry->d_name);
        good = zfl_digest_file(inside, &one, error);
        *digest += one;
    }
    closedir(directory);
    return good;
}

bool zf_digest_path(const char *path, uint64_t *digest, zf_error *error)
{
    struct stat about;
    *digest = ZF_DIGEST_START;
    if (!stat(path, &about) && S_ISDIR(about.st_mode))
        return zfl_digest_directory(path, digest, error);
    return zfl_digest_file(path, digest, error);
}
