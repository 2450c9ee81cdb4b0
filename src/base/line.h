/* base/line.h - what a processor's caches move at once: words that different threads write stand in
 * lines of their own.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  a multiple of 64.
 */
#ifndef HL_BASE_LINE_H
#define HL_BASE_LINE_H

#if defined(__powerpc64__)
#define HL_LINE 128
#else
#define HL_LINE 64
#endif

#endif
