/* A small NVML with two GPUs, for tests of what is asked of the real one through its binding for Python.
 *
 * FAKE_NVML has words "function=code": what a function returns in place of 0; one that is not there returns 0.
 * "mig=N" divides GPU 0 into N slices. Return codes are those of nvml.h:
 * 2 invalid argument, 3 not supported, 4 no permission, 6 not found, 9 driver not loaded, 15 GPU is lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS = 2, SLICES = 7 };
typedef struct {
    int gpu, slice; /* slice 0 is the GPU */
} device;

static device devices[GPUS][SLICES + 1];

static int told(const char *name, int otherwise) {
    const char *words = getenv("FAKE_NVML");
    size_t length = strlen(name);
    for (const char *word = words; word && *word; word = strchr(word, ' ')) {
        word += *word == ' ';
        if (!strncmp(word, name, length) && word[length] == '=') return atoi(word + length + 1);
    }
    return otherwise;
}

#define TOLD                                     \
    do {                                         \
        int code = told(__func__, 0);            \
        if (code) return code;                   \
    } while (0)
#define OF_A_GPU_ONLY \
    do {              \
        if (one->slice) return 3; \
    } while (0)

static device *handle(int gpu, int slice) {
    devices[gpu][slice].gpu = gpu, devices[gpu][slice].slice = slice;
    return &devices[gpu][slice];
}

static void uuid(const device *one, char *to, unsigned size) {
    if (one->slice) snprintf(to, size, "MIG-%08d-0000", 100 * one->gpu + one->slice);
    else snprintf(to, size, "GPU-%08d-0000", one->gpu);
}

int nvmlInitWithFlags(unsigned flags) { TOLD; return flags ? 2 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { TOLD; *count = GPUS; return 0; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **to) {
    TOLD;
    if (index >= GPUS) return 2;
    *to = handle(index, 0);
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *wanted, device **to) {
    TOLD;
    char own[96];
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int slice = 0; slice <= SLICES; slice++) {
            uuid(handle(gpu, slice), own, sizeof own);
            if (strcmp(own, wanted)) continue;
            if (slice > (gpu ? 0 : told("mig", 0))) return 6;
            *to = handle(gpu, slice);
            return 0;
        }
    return 6;
}

int nvmlDeviceGetUUID(device *one, char *to, unsigned size) { TOLD; uuid(one, to, size); return 0; }

int nvmlDeviceGetName(device *one, char *to, unsigned size) {
    TOLD;
    snprintf(to, size, one->slice ? "NVIDIA H100 MIG 1g.10gb" : "NVIDIA H100");
    return 0;
}

int nvmlDeviceGetMemoryInfo(device *one, unsigned long long *to) {
    TOLD;
    to[0] = (one->slice ? 10ull : 80ull) << 30, to[1] = to[0] - (1ull << 30), to[2] = 1ull << 30;
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(device *one, int *major, int *minor) {
    TOLD;
    if (one->slice) return 2;
    *major = 9, *minor = 0;
    return 0;
}

int nvmlSystemGetDriverVersion(char *to, unsigned size) { TOLD; snprintf(to, size, "580.95.05"); return 0; }

int nvmlDeviceGetUtilizationRates(device *one, unsigned *to) { TOLD; OF_A_GPU_ONLY; to[0] = 97, to[1] = 41; return 0; }
int nvmlDeviceGetPowerUsage(device *one, unsigned *to) { TOLD; OF_A_GPU_ONLY; *to = 350000; return 0; }

int nvmlDeviceGetTotalEnergyConsumption(device *one, unsigned long long *to) {
    TOLD;
    OF_A_GPU_ONLY;
    *to = 9000000000000ull; /* more than 32 bits */
    return 0;
}

int nvmlDeviceGetClockInfo(device *one, unsigned type, unsigned *to) { TOLD; OF_A_GPU_ONLY; *to = 1000 + type; return 0; }
int nvmlDeviceGetTemperature(device *one, unsigned sensor, unsigned *to) { TOLD; *to = 60 + sensor; return one ? 0 : 2; }

int nvmlDeviceGetCurrentClocksThrottleReasons(device *one, unsigned long long *to) {
    TOLD;
    OF_A_GPU_ONLY;
    *to = 4;
    return 0;
}

const char *nvmlErrorString(int code) {
    return code == 9 ? "Driver Not Loaded" : code == 4 ? "Insufficient Permissions" : "Some Error";
}
