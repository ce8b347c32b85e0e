// Hides instruction sets from everything that asks the processor for them, so
// that a program runs as on a narrower processor: LD_PRELOAD this, and name the
// processor in NARROW_PROCESSOR:
//
//   avx512  AVX-512 without VNNI, bfloat16 and AMX, as on a Skylake-X
//   avx2    no AVX-512 either, as on a Zen 3 and on Intel's processors for
//   consumers sse     no AVX either, as on x86-64-v2
//
// Linux lets the instruction CPUID raise SIGSEGV (arch_prctl, ARCH_SET_CPUID),
// and the handler here answers it. Instructions that are used without asking
// still work. The process ends with status 77 where the kernel or the processor
// cannot do this.
#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define SET_CPUID 0x1012  // ARCH_SET_CPUID of <asm/prctl.h>, which old headers lack
#define BIT(n) (1U << (n))

static enum { none, avx512, avx2, sse } narrowness;

static long let_cpuid_work(int works) { return syscall(SYS_arch_prctl, SET_CPUID, works); }

// Intel's manual, volume 2, CPUID: leaf 1, and both parts of leaf 7.
static void hide(unsigned leaf, unsigned part, unsigned* a, unsigned* b, unsigned* c, unsigned* d) {
    if (leaf == 1 && narrowness >= sse) *c &= ~(BIT(12) | BIT(28) | BIT(29));  // FMA, AVX, F16C
    if (leaf == 7 && part == 0) {
        *c &= ~BIT(11);                                  // AVX512-VNNI
        *d &= ~(BIT(22) | BIT(23) | BIT(24) | BIT(25));  // AMX-BF16, AVX512-FP16, AMX
        if (narrowness >= avx2) {
            *b &= ~(BIT(16) | BIT(17) | BIT(21));          // AVX512 F, DQ, IFMA
            *b &= ~(BIT(28) | BIT(30) | BIT(31));          // CD, BW, VL
            *c &= ~(BIT(1) | BIT(6) | BIT(12) | BIT(14));  // VBMI, VBMI2, BITALG, VPOPCNTDQ
            *d &= ~BIT(8);                                 // VP2INTERSECT
        }
        if (narrowness >= sse) *b &= ~BIT(5);  // AVX2
    }
    if (leaf == 7 && part == 1) {
        *a &= ~(BIT(4) | BIT(5) | BIT(21) | BIT(23));  // AVX-VNNI, AVX512-BF16, AMX-FP16, AVX-IFMA
        *d &= ~(BIT(4) | BIT(10) | BIT(19));           // AVX-VNNI of INT8, of INT16, AVX10
    }
}

typedef int Sigaction(int, const struct sigaction*, struct sigaction*);

static Sigaction* next_sigaction(void) { return (Sigaction*)dlsym(RTLD_NEXT, "sigaction"); }

static void answer(int number, siginfo_t* info, void* context) {
    greg_t* registers = ((ucontext_t*)context)->uc_mcontext.gregs;
    const unsigned char* instruction = (const unsigned char*)registers[REG_RIP];
    if (info->si_code <= 0 || instruction[0] != 0x0F || instruction[1] != 0xA2) {
        // A fault of the program's own: it happens again, and ends the program.
        const struct sigaction end = {.sa_handler = SIG_DFL};
        next_sigaction()(number, &end, NULL);
        return;
    }
    const unsigned leaf = (unsigned)registers[REG_RAX], part = (unsigned)registers[REG_RCX];
    unsigned a, b, c, d;
    let_cpuid_work(1);
    __cpuid_count(leaf, part, a, b, c, d);
    let_cpuid_work(0);
    hide(leaf, part, &a, &b, &c, &d);
    registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
    registers[REG_RIP] += 2;
}

// The program (Python's faulthandler, gcc) cannot take the signal away.
int sigaction(int number, const struct sigaction* action, struct sigaction* before) {
    if (number == SIGSEGV && narrowness != none) action = NULL;
    return next_sigaction()(number, action, before);
}

__sighandler_t signal(int number, __sighandler_t handler) {
    const struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction before;
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

__attribute__((constructor)) static void start(void) {
    const char* const name = getenv("NARROW_PROCESSOR");
    if (name == NULL) return;
    const struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    if (next_sigaction()(SIGSEGV, &action, NULL) != 0 || let_cpuid_work(0) != 0) _exit(77);
    narrowness = strcmp(name, "avx512") == 0 ? avx512 : strcmp(name, "avx2") == 0 ? avx2 : sse;
}
