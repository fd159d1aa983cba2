/* What the parts of the emulation have in common: the one lock, streams as lists of work, memory,
 * findings. */
#ifndef EMULATION_MACHINE_H
#define EMULATION_MACHINE_H

#include "emulation.h"

#include <cuda_runtime.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

namespace emulation
{

/* A sequence of numbers, by a seed. */
struct numbers {
    uint64_t state;
    uint64_t next()
    {
        uint64_t x = state += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        return x ^ x >> 31;
    }
    size_t below(size_t n) { return n ? (size_t)(next() % n) : 0; }
};

/* Held by every call of an application's thread, and while work runs. */
extern std::mutex lock;
extern std::condition_variable changed;

/* How a piece of work fares: it cannot go on yet; it did something; it is done. */
enum progress { WAITS, WENT_ON, DONE };
typedef std::function<progress()> attempt;

/* Work as it is put on a stream, once, or into a graph, to be begun at each launch of it. */
struct work {
    const char *name;
    std::function<attempt()> begin;
};

/* All of these are called with the lock held. */

/* Puts work on a stream, or into the graph that is captured from it. */
cudaError_t add(cudaStream_t stream, const work &w);
/* What is put on the stream goes into a graph. */
bool is_captured(cudaStream_t stream);
/* Lets the device's work, and other threads, go on until `done`; false: it is not, after so many
 * seconds. */
bool wait_until(int device, std::unique_lock<std::mutex> &held, const std::function<bool()> &done,
                int seconds);
/* Work that can go on whenever its turn comes. */
work simple(const char *name, const std::function<void()> &run);
/* A device has so many bytes less (or, of -1 times as many, more) to give. */
void reserve(int device, long bytes);
/* A line of the report. */
void found(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Something that must be freed was made (1), or freed (-1). */
void count(int by);
/* The code that a call of `function` is to give by emulation_refuse; 0: it is to work. */
int refused(const char *function);
/* [at, at + bytes) lies in one allocation of the device that is current. */
bool on_device(const void *at, size_t bytes);
int current_device();
/* Whether bytes around allocations are still what they were; what was run is named if not. */
void check_guards(const char *after);

/* Which instructions for products the device has (block.cpp; emulation.h). */
int has_cores();
/* Runs a grid, in an order by `order` (block.cpp); false: something was found. */
bool run_grid(const char *kernel, dim3 grid, dim3 block, size_t shared,
              const std::function<void()> &call, numbers order);

} /* namespace emulation */
#endif
