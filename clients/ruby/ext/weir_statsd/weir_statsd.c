/*
 * The hot parts of the client: finding the cell of a context, adding to it or to the bins of its sketch, writing numbers
 * as text, joining messages into packets, and handing packets to the kernel.
 *
 * Everything here runs under the global interpreter lock except `send_all`, and no function lets go of it between
 * reading and writing a cell or a queue. Cells and queues are therefore shared by all threads. Whatever is not a
 * plain case returns to the Ruby code, which is complete without this file.
 */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <ruby.h>
#include <ruby/encoding.h>
#include <ruby/thread.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static VALUE wire;
static ID id_exact, id_number, id_sum, id_flush_cell, id_deliver, id_abandoned, id_max_values, id_put;
static ID id_head_bytes, id_tail_bytes, id_queue, id_append;
static VALUE void_value;
static uint64_t last_stamp;

/* ---- bins of a sketch ---------------------------------------------------------------------------- */

/* The keys of bins whose boundaries are known, and of their negative twins. */
enum { KEYS_MAX = 4199 };

/* Bins of a sketch that hold more keys than this are the business of Ruby, which joins the lowest. */
enum { BINS_MAX = 4096 };

/* Bins come and go in groups of neighbours, so that the range of a sketch is seldom made larger. */
enum { BINS_GROUP = 32 };

/* The bins of one series between two moments: a count for each key of a range. */
struct bins {
  uint32_t *counts;
  /* The first key of the range, and how many it has; without counts, it has none yet, but those of before. */
  int32_t first, length, length_before;
  int64_t count;
  double sum, min, max;
  const double *bounds;
};

static void bins_clear(struct bins *bins) {
  *bins = (struct bins){.min = INFINITY, .max = -INFINITY, .bounds = bins->bounds};
}

/* The key of a value that is not negative: the logarithm is right but for the neighbour, and the boundaries decide.
 * Larger than KEYS_MAX for values beyond the last boundary. */
static inline int32_t bins_key(double value, const double *bounds) {
  /* The agent's logarithm of gamma. A division would take as long as the rest. */
  static const double keys_per_e = 1 / 0.015504186535965254;
  if (!(value >= bounds[0])) return 0;
  if (value >= bounds[KEYS_MAX]) return KEYS_MAX + 1;
  int32_t key = (int32_t)(log(value) * keys_per_e + 1338.5);
  if (key < 1) key = 1;
  if (key > KEYS_MAX) key = KEYS_MAX;
  if (value >= bounds[key]) return key + 1;
  return value < bounds[key - 1] ? key - 1 : key;
}

/* Makes the range large enough for a key and for the keys of before. */
static void bins_widen(struct bins *bins, int32_t key) {
  int32_t group = (key + KEYS_MAX) / BINS_GROUP * BINS_GROUP - KEYS_MAX;
  int32_t first = group, end = group + BINS_GROUP;
  int32_t length = bins->counts ? bins->length : bins->length_before;
  if (length) {
    if (bins->first < first) first = bins->first;
    if (bins->first + length > end) end = bins->first + length;
  }
  uint32_t *counts = ZALLOC_N(uint32_t, (size_t)(end - first));
  if (bins->counts) memcpy(counts + (bins->first - first), bins->counts, (size_t)length * sizeof(*counts));
  xfree(bins->counts);
  bins->counts = counts;
  bins->first = first;
  bins->length = end - first;
}

/* The range of the bins that are used, for the bins that come after. */
static void bins_trim(const struct bins *bins, struct bins *after) {
  int32_t first = 0, end = bins->length;
  while (end > 0 && !bins->counts[end - 1]) end--;
  while (first < end && !bins->counts[first]) first++;
  after->first = bins->first + first;
  after->length_before = end - first;
}

/* false when Ruby must add the value: it is too large for the keys, or a count is full. */
static inline bool bins_add(struct bins *bins, double value) {
  int32_t key = bins_key(fabs(value), bins->bounds);
  if (key > KEYS_MAX) return false;
  if (value < 0) key = -key;
  if ((uint32_t)(key - bins->first) >= (uint32_t)bins->length) bins_widen(bins, key);
  uint32_t *count = &bins->counts[key - bins->first];
  if (*count == UINT32_MAX) return false;
  ++*count;
  bins->count++;
  bins->sum += value;
  if (value < bins->min) bins->min = value;
  if (value > bins->max) bins->max = value;
  return true;
}

/* The floats that Ruby keeps in the reference itself are finite. */
static inline bool plain_number(VALUE value) {
  return FIXNUM_P(value) || RB_FLONUM_P(value) || (RB_FLOAT_TYPE_P(value) && isfinite(RFLOAT_VALUE(value)));
}

static inline double plain_float(VALUE value) { return FIXNUM_P(value) ? (double)FIX2LONG(value) : RFLOAT_VALUE(value); }

/* Bins that nobody adds to any more. */
static VALUE bins_class;

static void bins_free(void *data) {
  struct bins *bins = data;
  xfree(bins->counts);
  xfree(bins);
}

static size_t bins_size(const void *data) {
  const struct bins *bins = data;
  return sizeof(*bins) + (size_t)bins->length * sizeof(*bins->counts);
}

static const rb_data_type_t bins_type = {
    .wrap_struct_name = "weir bins",
    .function = {.dfree = bins_free, .dsize = bins_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct bins *get_bins(VALUE self) {
  struct bins *bins;
  TypedData_Get_Struct(self, struct bins, &bins_type, bins);
  return bins;
}

static VALUE new_bins(void) {
  struct bins *bins;
  VALUE self = TypedData_Make_Struct(bins_class, struct bins, &bins_type, bins);
  bins_clear(bins);
  return self;
}

/* table: the smallest value above each key, as doubles of the machine */
static const double *bounds_of(VALUE table) {
  Check_Type(table, T_STRING);
  if (RSTRING_LEN(table) != (long)((KEYS_MAX + 1) * sizeof(double))) rb_raise(rb_eArgError, "the table has another size");
  if (!OBJ_FROZEN(table)) rb_raise(rb_eArgError, "the table can change");
  return (const double *)(const void *)RSTRING_PTR(table);
}

/* bins(table, values) -> [bins with the plain numbers, or nil if there are none; the values that Ruby must add, or nil] */
static VALUE native_bins(VALUE self, VALUE table, VALUE values) {
  Check_Type(values, T_ARRAY);
  VALUE object = new_bins(), rest = Qnil;
  struct bins *bins = get_bins(object);
  bins->bounds = bounds_of(table);
  for (long i = 0; i < RARRAY_LEN(values); i++) {
    VALUE value = RARRAY_AREF(values, i);
    if (plain_number(value) && bins_add(bins, plain_float(value))) continue;
    if (NIL_P(rest)) rest = rb_ary_new();
    rb_ary_push(rest, value);
  }
  bins->bounds = NULL;
  RB_GC_GUARD(table);
  return rb_assoc_new(bins->count ? object : Qnil, rest);
}

static char *write_varint(char *at, uint64_t value) {
  for (; value > 0x7F; value >>= 7) *at++ = (char)(value | 0x80);
  *at++ = (char)value;
  return at;
}

/* More bytes than a difference of keys and a count take. */
enum { STEP_MAX = 3, SIZE_MAX_BYTES = 5 };

static long bins_used(const struct bins *bins) {
  long used = 0;
  for (int32_t i = 0; i < bins->length; i++) used += bins->counts[i] != 0;
  return used;
}

/* encode -> [how many bins there are, the differences of their keys, their counts], as a payload has them; nil if there
 * are more than a sketch may have */
static VALUE bins_encode(VALUE self) {
  struct bins *bins = get_bins(self);
  long used = bins_used(bins);
  if (used > BINS_MAX) return Qnil;
  VALUE steps = rb_str_buf_new(used * STEP_MAX), sizes = rb_str_buf_new(used * SIZE_MAX_BYTES);
  char *step = RSTRING_PTR(steps), *size = RSTRING_PTR(sizes);
  int32_t before = 0;
  for (int32_t i = 0; i < bins->length; i++) {
    if (!bins->counts[i]) continue;
    int32_t key = bins->first + i, difference = key - before;
    step = write_varint(step, difference < 0 ? (uint64_t)-difference * 2 - 1 : (uint64_t)difference * 2);
    size = write_varint(size, bins->counts[i]);
    before = key;
  }
  rb_str_set_len(steps, step - RSTRING_PTR(steps));
  rb_str_set_len(sizes, size - RSTRING_PTR(sizes));
  /* The buffers are longer than what they hold, which is kept for long. */
  VALUE kept_steps = rb_str_new(RSTRING_PTR(steps), RSTRING_LEN(steps));
  VALUE kept_sizes = rb_str_new(RSTRING_PTR(sizes), RSTRING_LEN(sizes));
  RB_GC_GUARD(steps);
  RB_GC_GUARD(sizes);
  RB_GC_GUARD(self);
  return rb_ary_new_from_args(3, LONG2NUM(used), kept_steps, kept_sizes);
}

/* counts -> {key => count} */
static VALUE bins_counts(VALUE self) {
  struct bins *bins = get_bins(self);
  VALUE counts = rb_hash_new();
  for (int32_t i = 0; i < bins->length; i++) {
    if (bins->counts[i]) rb_hash_aset(counts, INT2FIX(bins->first + i), UINT2NUM(bins->counts[i]));
  }
  RB_GC_GUARD(self);
  return counts;
}

/* Forgets the counts, and keeps what is asked for below. */
static VALUE bins_release(VALUE self) {
  struct bins *bins = get_bins(self);
  xfree(bins->counts);
  bins->counts = NULL;
  bins->length = 0;
  return self;
}

static VALUE bins_count(VALUE self) { return LL2NUM(get_bins(self)->count); }
static VALUE bins_sum(VALUE self) { return DBL2NUM(get_bins(self)->sum); }
static VALUE bins_min(VALUE self) { return DBL2NUM(get_bins(self)->min); }
static VALUE bins_max(VALUE self) { return DBL2NUM(get_bins(self)->max); }

/* ---- cells ------------------------------------------------------------------------------------- */

struct cell {
  VALUE template_, table, tags, core;
  long idle;
  bool expired, removed, bound;
  /* Counters: the sum of what fits into a word, and an Array of the rest, which `take` adds up. */
  int64_t sum;
  VALUE others;
  long hits;
  /* Gauges. */
  VALUE value;
  uint64_t stamp;
  /* Samples. If there are bounds, many at once go to the bins: the bins of a series that was not used for a moment are
   * far away in memory, and one sample alone would wait for them. */
  VALUE *values;
  size_t count, capacity, limit, max_values;
  struct bins bins;
  VALUE bounds; /* the string of the bounds */
  int64_t told; /* how many of the samples in the bins were told of */
};

static void cell_mark(void *data) {
  struct cell *cell = data;
  rb_gc_mark(cell->template_);
  rb_gc_mark(cell->table);
  rb_gc_mark(cell->tags);
  rb_gc_mark(cell->core);
  rb_gc_mark(cell->others);
  rb_gc_mark(cell->value);
  rb_gc_mark(cell->bounds);
  for (size_t i = 0; i < cell->count; i++) rb_gc_mark(cell->values[i]);
}

static void cell_free(void *data) {
  struct cell *cell = data;
  xfree(cell->bins.counts);
  xfree(cell->values);
  xfree(cell);
}

static size_t cell_size(const void *data) {
  const struct cell *cell = data;
  return sizeof(*cell) + cell->capacity * sizeof(VALUE) + (size_t)cell->bins.length * sizeof(*cell->bins.counts);
}

static const rb_data_type_t cell_type = {
    .wrap_struct_name = "weir cell",
    .function = {.dmark = cell_mark, .dfree = cell_free, .dsize = cell_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct cell *get_cell(VALUE self) {
  struct cell *cell;
  TypedData_Get_Struct(self, struct cell, &cell_type, cell);
  return cell;
}

static void cell_clear(struct cell *cell) {
  cell->sum = 0;
  cell->others = Qnil;
  cell->hits = 0;
  cell->value = Qnil;
  cell->stamp = 0;
  cell->count = 0;
  cell->bounds = Qnil;
  cell->told = 0;
  xfree(cell->bins.counts);
  cell->bins.bounds = NULL;
  bins_clear(&cell->bins);
}

static VALUE cell_alloc(VALUE klass) {
  struct cell *cell;
  VALUE self = TypedData_Make_Struct(klass, struct cell, &cell_type, cell);
  cell->template_ = cell->table = cell->tags = cell->core = cell->others = Qnil;
  cell->limit = cell->max_values = SIZE_MAX;
  cell_clear(cell);
  return self;
}

static void set_core(struct cell *cell, VALUE core) {
  cell->core = core;
  if (!NIL_P(core)) cell->limit = cell->max_values = NUM2SIZET(rb_funcall(core, id_max_values, 0));
}

static VALUE cell_initialize(int argc, VALUE *argv, VALUE self) {
  VALUE template_, table, core;
  rb_scan_args(argc, argv, "21", &template_, &table, &core);
  struct cell *cell = get_cell(self);
  cell->template_ = template_;
  cell->table = table;
  set_core(cell, core);
  return self;
}

#define READER(name, expression) \
  static VALUE cell_##name(VALUE self) { struct cell *cell = get_cell(self); return expression; }
#define WRITER(name, statement) \
  static VALUE cell_set_##name(VALUE self, VALUE value) { struct cell *cell = get_cell(self); statement; return value; }

READER(template, cell->template_)
WRITER(template, cell->template_ = value)
READER(table, cell->table)
READER(tags, cell->tags)
WRITER(tags, cell->tags = value)
WRITER(core, set_core(cell, value))
READER(idle, LONG2NUM(cell->idle))
WRITER(idle, cell->idle = NUM2LONG(value))
READER(expired, cell->expired ? Qtrue : Qfalse)
WRITER(expired, cell->expired = RTEST(value))
READER(removed, cell->removed ? Qtrue : Qfalse)
WRITER(removed, cell->removed = RTEST(value))
READER(bound, cell->bound ? Qtrue : Qfalse)
WRITER(bound, cell->bound = RTEST(value))
READER(value, cell->value)
READER(stamp, ULL2NUM(cell->stamp))

static VALUE cell_abandoned(VALUE self) {
  struct cell *cell = get_cell(self);
  if (cell->removed) return Qtrue;
  return NIL_P(cell->table) ? Qfalse : rb_funcall(cell->table, id_abandoned, 0);
}

static VALUE cell_reset(VALUE self) {
  struct cell *cell = get_cell(self);
  cell_clear(cell);
  cell->limit = cell->max_values;
  return self;
}

/* Numbers that are no words a counter keeps before it asks for a flush. */
enum { OTHERS_MAX = 4096 };

/* Adding such numbers calls Ruby, which may switch threads between the reading and the writing of a sum. So they are
 * only appended here. Nothing from the test to the end of the append lets another thread run. */
static void counter_append(VALUE self, struct cell *cell, VALUE value) {
  if (NIL_P(cell->others)) {
    VALUE others = rb_ary_new();
    if (NIL_P(cell->others)) cell->others = others;
  }
  rb_ary_push(cell->others, value);
  cell->hits++;
  if (RARRAY_LEN(cell->others) % OTHERS_MAX == 0 && !NIL_P(cell->core)) rb_funcall(cell->core, id_flush_cell, 1, self);
}

/* false when the value cannot be sent; the sums stay exact whatever the type. */
static VALUE counter_add(VALUE self, struct cell *cell, VALUE value) {
  if (FIXNUM_P(value)) {
    int64_t sum;
    if (!__builtin_add_overflow(cell->sum, (int64_t)FIX2LONG(value), &sum)) {
      cell->sum = sum;
      cell->hits++;
      return Qtrue;
    }
  }
  value = rb_funcall(wire, id_exact, 1, value);
  if (NIL_P(value)) return Qfalse;
  counter_append(self, cell, value);
  return Qtrue;
}

static VALUE counter_put(VALUE self, VALUE value) { return counter_add(self, get_cell(self), value); }

/* The cell is empty before anything is added up. */
static VALUE counter_take(VALUE self) {
  struct cell *cell = get_cell(self);
  int64_t words = cell->sum;
  long hits = cell->hits;
  VALUE others = cell->others;
  cell->sum = 0;
  cell->hits = 0;
  cell->others = Qnil;
  VALUE sum = LL2NUM(words);
  if (!NIL_P(others)) sum = rb_funcall(others, id_sum, 1, sum);
  return rb_assoc_new(LONG2NUM(hits), sum);
}

static VALUE gauge_set(struct cell *cell, VALUE value) {
  if (!plain_number(value)) {
    value = rb_funcall(wire, id_number, 1, value);
    if (NIL_P(value)) return Qfalse;
  }
  cell->value = value;
  cell->stamp = __atomic_add_fetch(&last_stamp, 1, __ATOMIC_RELAXED);
  cell->hits++;
  return Qtrue;
}

static VALUE gauge_put(VALUE self, VALUE value) { return gauge_set(get_cell(self), value); }

static VALUE gauge_take(VALUE self) {
  struct cell *cell = get_cell(self);
  VALUE hits = LONG2NUM(cell->hits);
  cell->hits = 0;
  return hits;
}

/* Adds to the bins what they take. */
static void samples_drain(struct cell *cell) {
  if (!cell->bins.bounds) return;
  size_t left = 0;
  for (size_t i = 0; i < cell->count; i++) {
    VALUE value = cell->values[i];
    if (!plain_number(value) || !bins_add(&cell->bins, plain_float(value))) cell->values[left++] = value;
  }
  cell->count = left;
}

static VALUE samples_add(VALUE self, struct cell *cell, VALUE value) {
  if (!plain_number(value)) {
    value = rb_funcall(wire, id_number, 1, value);
    if (NIL_P(value)) return Qfalse;
  }
  if (cell->count == cell->capacity) {
    size_t capacity = cell->capacity ? cell->capacity * 2 : 8;
    REALLOC_N(cell->values, VALUE, capacity);
    cell->capacity = capacity;
  }
  cell->values[cell->count++] = value;
  if (cell->count >= cell->limit) samples_drain(cell);
  if (cell->count >= cell->limit) {
    rb_funcall(cell->core, id_flush_cell, 1, self);
    /* A flush that is just running has not taken them: ask again when there are twice as many. */
    if (cell->count >= cell->limit) cell->limit = cell->count * 2;
  }
  return Qtrue;
}

static VALUE samples_put(VALUE self, VALUE value) { return samples_add(self, get_cell(self), value); }

static VALUE samples_take(VALUE self) {
  struct cell *cell = get_cell(self);
  samples_drain(cell);
  VALUE taken = rb_ary_new_from_values((long)cell->count, cell->values);
  cell->count = 0;
  cell->limit = cell->max_values;
  return taken;
}

/* fill(table): samples are added to bins from now on; nil: they are kept for `take` */
static VALUE samples_fill(VALUE self, VALUE table) {
  struct cell *cell = get_cell(self);
  cell->bins.bounds = NIL_P(table) ? NULL : bounds_of(table);
  cell->bounds = table;
  return self;
}

/* binned -> how many samples were added to bins since the last call */
static VALUE samples_binned(VALUE self) {
  struct cell *cell = get_cell(self);
  int64_t binned = cell->bins.count - cell->told;
  cell->told = cell->bins.count;
  return LL2NUM(binned);
}

/* take_bins -> what is in the bins, which are empty then; nil if nothing is */
static VALUE samples_take_bins(VALUE self) {
  struct cell *cell = get_cell(self);
  samples_drain(cell);
  if (!cell->bins.count) return Qnil;
  VALUE taken = new_bins();
  *get_bins(taken) = cell->bins;
  get_bins(taken)->bounds = NULL;
  /* The next `binned` tells of the rest. */
  cell->told -= cell->bins.count;
  bins_clear(&cell->bins);
  bins_trim(get_bins(taken), &cell->bins);
  return taken;
}

/* ---- handles ------------------------------------------------------------------------------------ */

static VALUE handle_increment(int argc, VALUE *argv, VALUE self) {
  VALUE value;
  if (rb_scan_args(argc, argv, "01", &value) == 0) value = INT2FIX(1);
  struct cell *cell = get_cell(self);
  if (cell->bound && FIXNUM_P(value) && counter_add(self, cell, value) == Qtrue) return void_value;
  return rb_funcall(self, id_deliver, 1, value);
}

static VALUE handle_set(VALUE self, VALUE value) {
  struct cell *cell = get_cell(self);
  if (cell->bound && plain_number(value)) {
    gauge_set(cell, value);
    return void_value;
  }
  return rb_funcall(self, id_deliver, 1, value);
}

static VALUE handle_record(VALUE self, VALUE value) {
  struct cell *cell = get_cell(self);
  if (cell->bound && plain_number(value)) {
    samples_add(self, cell, value);
    return void_value;
  }
  return rb_funcall(self, id_deliver, 1, value);
}

/* ---- numbers as text ---------------------------------------------------------------------------- */

static char *write_integer(char *at, uint64_t value) {
  char digits[20];
  int count = 0;
  do {
    digits[count++] = (char)('0' + value % 10);
    value /= 10;
  } while (value);
  while (count) *at++ = digits[--count];
  return at;
}

/* Writes a float that has at most six decimals, which most have that people measure.
 * Returns NULL for others. The result reads back as the same float. */
static char *write_short_float(char *at, double value) {
  double magnitude = fabs(value);
  if (!(magnitude < 1e9)) return NULL;
  double scaled = magnitude * 1e6;
  uint64_t whole = (uint64_t)(scaled + 0.5);
  if ((double)whole / 1e6 != magnitude) return NULL;
  if (signbit(value)) *at++ = '-';
  at = write_integer(at, whole / 1000000);
  *at++ = '.';
  uint32_t rest = (uint32_t)(whole % 1000000);
  char *end = at + 1;
  for (uint32_t unit = 100000, i = 1; unit; unit /= 10, i++) {
    char digit = (char)('0' + rest / unit % 10);
    *at++ = digit;
    if (digit != '0') end = at;
  }
  return end;
}

/* Longest text of a number that is written here: sign, 20 digits, point, 6 digits. */
enum { NUMBER_MAX = 32 };

/* Returns the end, or NULL when the number must be written by Ruby. */
static char *write_number(char *at, VALUE value) {
  if (FIXNUM_P(value)) {
    long number = FIX2LONG(value);
    if (number < 0) *at++ = '-';
    return write_integer(at, number < 0 ? (uint64_t)0 - (uint64_t)number : (uint64_t)number);
  }
  return RB_FLOAT_TYPE_P(value) ? write_short_float(at, RFLOAT_VALUE(value)) : NULL;
}

/* ---- queue: messages joined into packets as they come -------------------------------------------- */

struct packet {
  struct packet *next;
  size_t length;
  /* Items are what the capacity counts; the rest is for telemetry. */
  long items, messages, events, checks;
  char bytes[];
};

struct queue {
  struct packet *first, *last, *spare;
  size_t max_packet, spare_count;
  long items, capacity;
  bool closed, parked, poked;
  VALUE thread; /* the one that takes and sends */
};

/* Packets kept for reuse; more than one call to sendmmsg needs are freed. */
enum { SPARE_PACKETS = 64, SEND_BATCH = 32 };

static void free_packets(struct packet *packet) {
  while (packet) {
    struct packet *next = packet->next;
    xfree(packet);
    packet = next;
  }
}

static void queue_mark(void *data) { rb_gc_mark(((struct queue *)data)->thread); }

static void queue_free(void *data) {
  struct queue *queue = data;
  free_packets(queue->first);
  free_packets(queue->spare);
  xfree(queue);
}

static size_t queue_size(const void *data) {
  const struct queue *queue = data;
  size_t packets = queue->spare_count;
  for (const struct packet *packet = queue->first; packet; packet = packet->next) packets++;
  return sizeof(*queue) + packets * (sizeof(struct packet) + queue->max_packet);
}

static const rb_data_type_t queue_type = {
    .wrap_struct_name = "weir queue",
    .function = {.dmark = queue_mark, .dfree = queue_free, .dsize = queue_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct queue *get_queue(VALUE self) {
  struct queue *queue;
  TypedData_Get_Struct(self, struct queue, &queue_type, queue);
  return queue;
}

static VALUE queue_alloc(VALUE klass) {
  struct queue *queue;
  VALUE self = TypedData_Make_Struct(klass, struct queue, &queue_type, queue);
  queue->thread = Qnil;
  return self;
}

static VALUE queue_initialize(VALUE self, VALUE capacity, VALUE max_packet) {
  struct queue *queue = get_queue(self);
  long items = NUM2LONG(capacity);
  long bytes = NUM2LONG(max_packet);
  if (items <= 0 || bytes <= 0) rb_raise(rb_eArgError, "capacity and packet size must be positive");
  /* The size of a packet in the making must not change. */
  if (queue->max_packet) rb_raise(rb_eArgError, "initialized twice");
  queue->capacity = items;
  queue->max_packet = (size_t)bytes;
  return self;
}

static struct packet *new_packet(struct queue *queue) {
  struct packet *packet = queue->spare;
  if (packet) {
    queue->spare = packet->next;
    queue->spare_count--;
  } else {
    packet = xmalloc(sizeof(*packet) + queue->max_packet);
  }
  memset(packet, 0, sizeof(*packet));
  if (queue->last) queue->last->next = packet;
  else queue->first = packet;
  queue->last = packet;
  return packet;
}

static void recycle(struct queue *queue, struct packet *packet) {
  if (queue->spare_count >= SPARE_PACKETS) {
    xfree(packet);
    return;
  }
  packet->next = queue->spare;
  queue->spare = packet;
  queue->spare_count++;
}

static void queue_wake_now(struct queue *queue) {
  queue->poked = true;
  if (!queue->parked) return;
  queue->parked = false;
  rb_thread_wakeup_alive(queue->thread);
}

enum added { ADDED, FULL, TOO_LONG };

struct part {
  const char *bytes;
  size_t length;
};

/* One message, or several that were joined already. Wakes the sending thread if it sleeps. */
static enum added queue_add(struct queue *queue, const struct part *parts, int count, bool message) {
  size_t length = 0;
  for (int i = 0; i < count; i++) length += parts[i].length;
  if (length > queue->max_packet) return TOO_LONG;
  if (queue->closed || queue->items >= queue->capacity) return FULL;
  if (length == 0) return ADDED;
  struct packet *packet = queue->last;
  if (packet && packet->length + 1 + length <= queue->max_packet) {
    packet->bytes[packet->length++] = '\n';
  } else {
    packet = new_packet(queue);
  }
  char *at = packet->bytes + packet->length;
  const char *start = at;
  for (int i = 0; i < count; i++) {
    memcpy(at, parts[i].bytes, parts[i].length);
    at += parts[i].length;
  }
  packet->length += length;
  packet->items++;
  queue->items++;
  if (message) {
    packet->messages++;
    if (start[0] == '_' && length >= 4) {
      if (memcmp(start, "_e{", 3) == 0) packet->events++;
      else if (memcmp(start, "_sc|", 4) == 0) packet->checks++;
    }
  }
  if (queue->parked) queue_wake_now(queue);
  return ADDED;
}

static VALUE queue_push_string(VALUE self, VALUE text, bool message) {
  StringValue(text);
  struct part part = {RSTRING_PTR(text), (size_t)RSTRING_LEN(text)};
  enum added added = queue_add(get_queue(self), &part, 1, message);
  RB_GC_GUARD(text);
  return added == ADDED ? Qtrue : added == FULL ? Qnil : Qfalse;
}

/* push(message) -> true: taken; nil: full or closed; false: longer than a packet */
static VALUE queue_push(VALUE self, VALUE text) { return queue_push_string(self, text, true); }

/* The same for a finished packet, whose messages were counted before. */
static VALUE queue_push_packet(VALUE self, VALUE text) { return queue_push_string(self, text, false); }

/* take -> nil when empty, else [packets, items in each, messages, events, checks, items that were waiting] */
static VALUE queue_take(VALUE self) {
  struct queue *queue = get_queue(self);
  if (!queue->first) return Qnil;
  VALUE packets = rb_ary_new_capa(SEND_BATCH);
  VALUE counts = rb_ary_new_capa(SEND_BATCH);
  long waiting = queue->items, messages = 0, events = 0, checks = 0;
  for (int i = 0; i < SEND_BATCH && queue->first; i++) {
    struct packet *packet = queue->first;
    rb_ary_push(packets, rb_str_new(packet->bytes, (long)packet->length));
    rb_ary_push(counts, LONG2NUM(packet->items));
    queue->first = packet->next;
    if (!queue->first) queue->last = NULL;
    queue->items -= packet->items;
    messages += packet->messages;
    events += packet->events;
    checks += packet->checks;
    recycle(queue, packet);
  }
  return rb_ary_new_from_args(6, packets, counts, LONG2NUM(messages), LONG2NUM(events), LONG2NUM(checks),
                              LONG2NUM(waiting));
}

/* Sleeps until something comes or `wake` is called, which may have happened already. */
static VALUE queue_park(VALUE self) {
  struct queue *queue = get_queue(self);
  if (!queue->first && !queue->poked) {
    queue->thread = rb_thread_current();
    queue->parked = true;
    rb_thread_sleep_forever();
    queue->parked = false;
  }
  queue->poked = false;
  return self;
}

static VALUE queue_wake(VALUE self) {
  queue_wake_now(get_queue(self));
  return self;
}

static VALUE queue_clear(VALUE self) {
  struct queue *queue = get_queue(self);
  free_packets(queue->first);
  queue->first = queue->last = NULL;
  queue->items = 0;
  queue->parked = queue->poked = false;
  queue->thread = Qnil;
  return self;
}

static VALUE queue_close(VALUE self) {
  get_queue(self)->closed = true;
  return queue_wake(self);
}

static VALUE queue_closed(VALUE self) { return get_queue(self)->closed ? Qtrue : Qfalse; }

static VALUE queue_parked(VALUE self) { return get_queue(self)->parked ? Qtrue : Qfalse; }

static VALUE queue_length(VALUE self) { return LONG2NUM(get_queue(self)->items); }

/* ---- emitters: one context, each value a message of its own --------------------------------------- */

struct emitter {
  VALUE template_, tags, head, tail, queue_object, dispatcher;
  struct queue *queue;
};

static void emitter_mark(void *data) {
  struct emitter *emitter = data;
  rb_gc_mark(emitter->template_);
  rb_gc_mark(emitter->tags);
  rb_gc_mark(emitter->head);
  rb_gc_mark(emitter->tail);
  rb_gc_mark(emitter->queue_object);
  rb_gc_mark(emitter->dispatcher);
}

static size_t emitter_size(const void *data) { return sizeof(struct emitter); }

static const rb_data_type_t emitter_type = {
    .wrap_struct_name = "weir emitter",
    .function = {.dmark = emitter_mark, .dfree = RUBY_DEFAULT_FREE, .dsize = emitter_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct emitter *get_emitter(VALUE self) {
  struct emitter *emitter;
  TypedData_Get_Struct(self, struct emitter, &emitter_type, emitter);
  return emitter;
}

static VALUE emitter_alloc(VALUE klass) {
  struct emitter *emitter;
  VALUE self = TypedData_Make_Struct(klass, struct emitter, &emitter_type, emitter);
  emitter->template_ = emitter->tags = emitter->head = emitter->tail = Qnil;
  emitter->queue_object = emitter->dispatcher = Qnil;
  return self;
}

static VALUE emitter_initialize(VALUE self, VALUE template_, VALUE dispatcher) {
  struct emitter *emitter = get_emitter(self);
  VALUE head = rb_funcall(template_, id_head_bytes, 0);
  VALUE tail = rb_funcall(template_, id_tail_bytes, 0);
  VALUE queue_object = rb_funcall(dispatcher, id_queue, 0);
  Check_Type(head, T_STRING);
  Check_Type(tail, T_STRING);
  emitter->queue = get_queue(queue_object);
  emitter->template_ = template_;
  emitter->dispatcher = dispatcher;
  emitter->queue_object = queue_object;
  emitter->head = rb_str_new_frozen(head);
  emitter->tail = rb_str_new_frozen(tail);
  return self;
}

static VALUE emitter_template(VALUE self) { return get_emitter(self)->template_; }
static VALUE emitter_tags(VALUE self) { return get_emitter(self)->tags; }
static VALUE emitter_set_tags(VALUE self, VALUE tags) { return get_emitter(self)->tags = tags; }

/* The dispatcher decides about a message that the queue did not take. */
static void emitter_overflow(struct emitter *emitter, const struct part *parts, int count) {
  VALUE text = rb_str_buf_new(64);
  for (int i = 0; i < count; i++) rb_str_cat(text, parts[i].bytes, (long)parts[i].length);
  rb_funcall(emitter->dispatcher, id_append, 1, text);
}

/* false when the value cannot be sent */
static VALUE emitter_emit(VALUE self, struct emitter *emitter, VALUE value) {
  if (!emitter->queue) rb_raise(rb_eArgError, "not initialized");
  char buffer[NUMBER_MAX];
  struct part parts[3];
  VALUE text = Qnil;
  char *end = plain_number(value) ? write_number(buffer, value) : NULL;
  if (end) {
    parts[1] = (struct part){buffer, (size_t)(end - buffer)};
  } else {
    text = rb_funcall(wire, id_number, 1, value);
    if (NIL_P(text)) return Qfalse;
    text = rb_obj_as_string(text);
    parts[1] = (struct part){RSTRING_PTR(text), (size_t)RSTRING_LEN(text)};
  }
  parts[0] = (struct part){RSTRING_PTR(emitter->head), (size_t)RSTRING_LEN(emitter->head)};
  parts[2] = (struct part){RSTRING_PTR(emitter->tail), (size_t)RSTRING_LEN(emitter->tail)};
  if (queue_add(emitter->queue, parts, 3, true) != ADDED) emitter_overflow(emitter, parts, 3);
  RB_GC_GUARD(text);
  RB_GC_GUARD(self);
  return Qtrue;
}

static VALUE emitter_put(VALUE self, VALUE value) { return emitter_emit(self, get_emitter(self), value); }

/* ---- sending without the interpreter lock -------------------------------------------------------- */

struct sending {
  int descriptor, count, sent, error, refused, timeout_ms;
  struct mmsghdr *headers;
};

/* Whether an error can be about an earlier packet, as a host that received it, or a firewall on the way, reports it. */
static bool tells_of_refusal(int error) { return error == ECONNREFUSED || error == EHOSTUNREACH; }

/* Runs without the lock: touches nothing of Ruby.
 *
 * The kernel swallows the error of a message that is not the first of its call. If the same message goes out at the
 * next try, or meets the next refusal, the error told of an earlier packet that the other side refused. */
static void *send_all(void *data) {
  struct sending *sending = data;
  bool stopped_early = false;
  while (sending->sent < sending->count) {
    int left = sending->count - sending->sent;
    int sent = sendmmsg(sending->descriptor, sending->headers + sending->sent, (unsigned int)left,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      sending->refused += stopped_early;
      stopped_early = sent < left;
      sending->sent += sent;
      continue;
    }
    if (sent == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) {
      sending->error = errno;
      sending->refused += stopped_early && tells_of_refusal(errno);
      return NULL;
    }
    stopped_early = false;
    struct pollfd wait = {.fd = sending->descriptor, .events = POLLOUT};
    int ready = poll(&wait, 1, sending->timeout_ms);
    if (ready > 0) continue;
    /* Ruby has to look at a signal, and then calls again. */
    sending->error = ready == 0 ? ETIMEDOUT : errno == EINTR ? 0 : errno;
    return NULL;
  }
  return NULL;
}

/* send_packets(descriptor, packets, from, timeout in ms) -> [packets sent from there on, the number of the error that
 * ended it or 0, how many of the packets sent before were refused without that number] */
static VALUE native_send_packets(VALUE self, VALUE descriptor, VALUE packets, VALUE from, VALUE timeout) {
  Check_Type(packets, T_ARRAY);
  long start = NUM2LONG(from);
  long count = RARRAY_LEN(packets) - start;
  if (start < 0 || count <= 0) return rb_ary_new_from_args(3, INT2FIX(0), INT2FIX(0), INT2FIX(0));
  if (count > SEND_BATCH) count = SEND_BATCH;
  /* Kept on the stack, where the collector neither frees nor moves them; frozen, so that nobody changes them. */
  VALUE kept[SEND_BATCH];
  struct iovec vectors[SEND_BATCH];
  struct mmsghdr headers[SEND_BATCH];
  memset(headers, 0, sizeof(headers));
  for (long i = 0; i < count; i++) {
    VALUE packet = RARRAY_AREF(packets, start + i);
    Check_Type(packet, T_STRING);
    kept[i] = rb_str_new_frozen(packet);
    vectors[i] = (struct iovec){RSTRING_PTR(kept[i]), (size_t)RSTRING_LEN(kept[i])};
    headers[i].msg_hdr.msg_iov = &vectors[i];
    headers[i].msg_hdr.msg_iovlen = 1;
  }
  struct sending sending = {
      .descriptor = NUM2INT(descriptor), .count = (int)count, .timeout_ms = NUM2INT(timeout), .headers = headers};
  rb_thread_call_without_gvl(send_all, &sending, RUBY_UBF_IO, NULL);
  for (long i = 0; i < count; i++) RB_GC_GUARD(kept[i]);
  return rb_ary_new_from_args(3, INT2NUM(sending.sent), INT2NUM(sending.error), INT2NUM(sending.refused));
}

/* ---- contexts ----------------------------------------------------------------------------------- */

enum form { FORM_NONE, FORM_ARRAY, FORM_HASH, FORM_ONE };

struct entry {
  struct entry *next;
  uint64_t hash;
  VALUE name, cell_object;
  struct cell *cell;       /* NULL for kind e */
  struct emitter *emitter; /* NULL for other kinds, and where the emitter is a Ruby object */
  enum form form;
  long length;
  VALUE tags[];
};

struct context_map {
  struct entry **buckets;
  size_t bucket_count, entry_count;
  int kind; /* c counters, g gauges, m samples, e emitters: Ruby objects that send each value */
};

static void map_mark(void *data) {
  struct context_map *map = data;
  for (size_t i = 0; i < map->bucket_count; i++) {
    for (struct entry *entry = map->buckets[i]; entry; entry = entry->next) {
      rb_gc_mark(entry->name);
      rb_gc_mark(entry->cell_object);
      for (long j = 0; j < entry->length; j++) rb_gc_mark(entry->tags[j]);
    }
  }
}

static void map_free(void *data) {
  struct context_map *map = data;
  for (size_t i = 0; i < map->bucket_count; i++) {
    struct entry *entry = map->buckets[i];
    while (entry) {
      struct entry *next = entry->next;
      xfree(entry);
      entry = next;
    }
  }
  xfree(map->buckets);
  xfree(map);
}

static size_t map_size(const void *data) {
  const struct context_map *map = data;
  return sizeof(*map) + map->bucket_count * sizeof(struct entry *) + map->entry_count * sizeof(struct entry);
}

static const rb_data_type_t context_map_type = {
    .wrap_struct_name = "weir context map",
    .function = {.dmark = map_mark, .dfree = map_free, .dsize = map_size},
    .flags = RUBY_TYPED_FREE_IMMEDIATELY,
};

static struct context_map *get_map(VALUE self) {
  struct context_map *map;
  TypedData_Get_Struct(self, struct context_map, &context_map_type, map);
  return map;
}

static VALUE map_alloc(VALUE klass) {
  struct context_map *map;
  VALUE self = TypedData_Make_Struct(klass, struct context_map, &context_map_type, map);
  map->buckets = ZALLOC_N(struct entry *, 16);
  map->bucket_count = 16;
  return self;
}

static VALUE map_initialize(VALUE self, VALUE kind) {
  get_map(self)->kind = NUM2INT(kind);
  return self;
}

/* Known to nobody outside the process, so that nobody can choose numbers that share a bucket. */
static uint64_t secrets[2];

static inline uint64_t mix(uint64_t hash, uint64_t value) {
  unsigned __int128 product = (unsigned __int128)(hash ^ secrets[0]) * (value ^ secrets[1]);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Ruby hashes bytes with a key that it draws when the process starts. */
static void draw_secrets(void) {
  for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) secrets[i] = rb_memhash(&i, sizeof(i));
}

/* Only values whose text cannot change behind our back take part; for others the caller does without. */
static inline bool hash_value(VALUE value, uint64_t *hash) {
  if (RB_SPECIAL_CONST_P(value)) {
    *hash = mix(*hash, (uint64_t)value);
    return true;
  }
  switch (RB_BUILTIN_TYPE(value)) {
    case T_STRING:
      *hash = mix(*hash, rb_memhash(RSTRING_PTR(value), RSTRING_LEN(value)));
      return true;
    case T_SYMBOL:
      *hash = mix(*hash, (uint64_t)value);
      return true;
    default:
      return false;
  }
}

static inline bool same_value(VALUE kept, VALUE given) {
  if (kept == given) return true;
  if (RB_SPECIAL_CONST_P(kept) || RB_SPECIAL_CONST_P(given)) return false;
  if (!RB_TYPE_P(kept, T_STRING) || !RB_TYPE_P(given, T_STRING)) return false;
  long length = RSTRING_LEN(kept);
  return length == RSTRING_LEN(given) && memcmp(RSTRING_PTR(kept), RSTRING_PTR(given), length) == 0 &&
         rb_enc_get_index(kept) == rb_enc_get_index(given);
}

struct walk {
  uint64_t hash;
  bool usable;
  const struct entry *entry;
  VALUE into;
  long position;
};

static int hash_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  walk->usable = hash_value(key, &walk->hash) && hash_value(value, &walk->hash);
  return walk->usable ? ST_CONTINUE : ST_STOP;
}

static int same_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  const VALUE *kept = walk->entry->tags + walk->position;
  walk->usable = same_value(kept[0], key) && same_value(kept[1], value);
  walk->position += 2;
  return walk->usable ? ST_CONTINUE : ST_STOP;
}

static VALUE frozen(VALUE value) { return RB_TYPE_P(value, T_STRING) ? rb_str_new_frozen(value) : value; }

static int copy_pair(VALUE key, VALUE value, VALUE data) {
  struct walk *walk = (struct walk *)data;
  rb_ary_push(walk->into, frozen(key));
  rb_ary_push(walk->into, frozen(value));
  return ST_CONTINUE;
}

/* The order of tags takes part: the same tags in another order are another entry with its own cell, and
 * the cells are merged when they are flushed. */
static bool hash_context(VALUE name, VALUE tags, enum form *form, uint64_t *hash) {
  *hash = 0;
  if (!hash_value(name, hash)) return false;
  if (NIL_P(tags)) {
    *form = FORM_NONE;
    return true;
  }
  if (!RB_SPECIAL_CONST_P(tags)) {
    if (RB_BUILTIN_TYPE(tags) == T_HASH) {
      struct walk walk = {.hash = mix(*hash, FORM_HASH), .usable = true};
      *form = FORM_HASH;
      rb_hash_foreach(tags, hash_pair, (VALUE)&walk);
      *hash = walk.hash;
      return walk.usable;
    }
    if (RB_BUILTIN_TYPE(tags) == T_ARRAY) {
      *form = FORM_ARRAY;
      *hash = mix(*hash, FORM_ARRAY);
      for (long i = 0; i < RARRAY_LEN(tags); i++) {
        if (!hash_value(RARRAY_AREF(tags, i), hash)) return false;
      }
      return true;
    }
  }
  *form = FORM_ONE;
  *hash = mix(*hash, FORM_ONE);
  return (RB_SYMBOL_P(tags) || RB_TYPE_P(tags, T_STRING)) && hash_value(tags, hash);
}

static bool same_tags(const struct entry *entry, VALUE tags) {
  switch (entry->form) {
    case FORM_NONE:
      return true;
    case FORM_ONE:
      return same_value(entry->tags[0], tags);
    case FORM_ARRAY:
      if (RARRAY_LEN(tags) != entry->length) return false;
      for (long i = 0; i < entry->length; i++) {
        if (!same_value(entry->tags[i], RARRAY_AREF(tags, i))) return false;
      }
      return true;
    default: {
      if ((long)RHASH_SIZE(tags) * 2 != entry->length) return false;
      struct walk walk = {.usable = true, .entry = entry};
      rb_hash_foreach(tags, same_pair, (VALUE)&walk);
      return walk.usable;
    }
  }
}

static struct entry *find(struct context_map *map, VALUE name, VALUE tags) {
  enum form form;
  uint64_t hash;
  if (!hash_context(name, tags, &form, &hash)) return NULL;
  for (struct entry *entry = map->buckets[hash & (map->bucket_count - 1)]; entry; entry = entry->next) {
    if (entry->hash == hash && entry->form == form && same_value(entry->name, name) && same_tags(entry, tags)) {
      return entry;
    }
  }
  return NULL;
}

/* true: recorded. false: the value cannot be sent. nil: there is no such context yet. */
static VALUE map_put(VALUE self, VALUE name, VALUE tags, VALUE value) {
  struct context_map *map = get_map(self);
  struct entry *entry = find(map, name, tags);
  if (!entry) return Qnil;
  VALUE object = entry->cell_object;
  VALUE done;
  switch (map->kind) {
    case 'c': done = counter_add(object, entry->cell, value); break;
    case 'g': done = gauge_set(entry->cell, value); break;
    case 'e':
      done = entry->emitter ? emitter_emit(object, entry->emitter, value) : rb_funcall(object, id_put, 1, value);
      break;
    default: done = samples_add(object, entry->cell, value); break;
  }
  /* Ruby code that ran meanwhile may have removed the entry, but not while we hold its cell. */
  RB_GC_GUARD(object);
  return done;
}

static void grow(struct context_map *map) {
  size_t count = map->bucket_count * 2;
  struct entry **buckets = ZALLOC_N(struct entry *, count);
  for (size_t i = 0; i < map->bucket_count; i++) {
    struct entry *entry = map->buckets[i];
    while (entry) {
      struct entry *next = entry->next;
      entry->next = buckets[entry->hash & (count - 1)];
      buckets[entry->hash & (count - 1)] = entry;
      entry = next;
    }
  }
  xfree(map->buckets);
  map->buckets = buckets;
  map->bucket_count = count;
}

/* Stores nothing and returns the cell found if another thread was quicker. */
static VALUE map_store(VALUE self, VALUE name, VALUE tags, VALUE cell_object) {
  struct context_map *map = get_map(self);
  struct entry *found = find(map, name, tags);
  if (found) return found->cell_object;
  enum form form;
  uint64_t hash;
  if (!hash_context(name, tags, &form, &hash)) return Qnil;
  long length = form == FORM_NONE ? 0
                : form == FORM_ARRAY ? RARRAY_LEN(tags)
                : form == FORM_HASH ? (long)RHASH_SIZE(tags) * 2 : 1;
  /* Copies are made before the entry exists, because making them can collect garbage. They live in an
   * Array until then. */
  VALUE copies = rb_ary_new_capa(length);
  struct walk walk = {.into = copies};
  if (form == FORM_HASH) {
    rb_hash_foreach(tags, copy_pair, (VALUE)&walk);
  } else {
    for (long i = 0; i < length; i++) {
      rb_ary_push(copies, frozen(form == FORM_ARRAY ? RARRAY_AREF(tags, i) : tags));
    }
  }
  VALUE kept_name = frozen(name);
  struct cell *cell = map->kind == 'e' ? NULL : get_cell(cell_object);
  struct entry *entry = xmalloc(sizeof(*entry) + (size_t)length * sizeof(VALUE));
  entry->hash = hash;
  entry->name = kept_name;
  entry->cell_object = cell_object;
  entry->cell = cell;
  entry->emitter = map->kind == 'e' && rb_typeddata_is_kind_of(cell_object, &emitter_type) ? get_emitter(cell_object) : NULL;
  entry->form = form;
  entry->length = length;
  for (long i = 0; i < length; i++) entry->tags[i] = RARRAY_AREF(copies, i);
  if (map->entry_count >= map->bucket_count) grow(map);
  entry->next = map->buckets[hash & (map->bucket_count - 1)];
  map->buckets[hash & (map->bucket_count - 1)] = entry;
  map->entry_count++;
  RB_GC_GUARD(copies);
  RB_GC_GUARD(kept_name);
  return cell_object;
}

/* Forgets entries; cells are marked as removed. */
static VALUE remove_entries(VALUE self, bool all) {
  struct context_map *map = get_map(self);
  for (size_t i = 0; i < map->bucket_count; i++) {
    struct entry **link = &map->buckets[i];
    while (*link) {
      struct entry *entry = *link;
      if (all || (entry->cell && entry->cell->expired)) {
        if (entry->cell) entry->cell->removed = true;
        *link = entry->next;
        xfree(entry);
        map->entry_count--;
      } else {
        link = &entry->next;
      }
    }
  }
  return self;
}

/* Forgets expired cells. */
static VALUE map_sweep(VALUE self) { return remove_entries(self, false); }

/* Forgets everything. */
static VALUE map_clear(VALUE self) { return remove_entries(self, true); }

static VALUE map_length(VALUE self) { return SIZET2NUM(get_map(self)->entry_count); }

/* The number of entries in the fullest bucket. */
static VALUE map_longest_bucket(VALUE self) {
  struct context_map *map = get_map(self);
  size_t longest = 0;
  for (size_t i = 0; i < map->bucket_count; i++) {
    size_t length = 0;
    for (struct entry *entry = map->buckets[i]; entry; entry = entry->next) length++;
    if (length > longest) longest = length;
  }
  return SIZET2NUM(longest);
}

/* ---- packed values ------------------------------------------------------------------------------- */

/* pack(values) -> the finite numbers joined with colons, or nil */
static VALUE native_pack(VALUE self, VALUE values) {
  Check_Type(values, T_ARRAY);
  VALUE text = rb_str_buf_new(RARRAY_LEN(values) * 10 + 16);
  rb_enc_associate_index(text, rb_utf8_encindex());
  char buffer[512];
  char *at = buffer;
  bool first = true;
  for (long i = 0; i < RARRAY_LEN(values); i++) {
    VALUE value = RARRAY_AREF(values, i);
    char *start = at;
    if (!first) *at++ = ':';
    char *end = write_number(at, value);
    if (end) {
      at = end;
      first = false;
    } else {
      at = start;
      rb_str_cat(text, buffer, at - buffer);
      at = buffer;
      VALUE number = rb_funcall(wire, id_number, 1, value);
      if (!NIL_P(number)) {
        if (!first) rb_str_cat(text, ":", 1);
        rb_str_append(text, number);
        first = false;
      }
    }
    if (at - buffer > (long)sizeof(buffer) - 64) {
      rb_str_cat(text, buffer, at - buffer);
      at = buffer;
    }
  }
  rb_str_cat(text, buffer, at - buffer);
  return first ? Qnil : text;
}

/* ---- setup -------------------------------------------------------------------------------------- */

void Init_weir_statsd_native(void) {
#ifdef HAVE_RB_EXT_RACTOR_SAFE
  /* Objects belong to one Ractor; what all share is `last_stamp` and what is set here. */
  rb_ext_ractor_safe(true);
#endif
  VALUE statsd = rb_const_get(rb_cObject, rb_intern("StatsD"));
  VALUE instrument = rb_const_get(statsd, rb_intern("Instrument"));
  wire = rb_const_get(instrument, rb_intern("Wire"));
  void_value = rb_const_get(instrument, rb_intern("VOID"));
  rb_gc_register_mark_object(wire);
  rb_gc_register_mark_object(void_value);
  draw_secrets();
  id_exact = rb_intern("exact");
  id_number = rb_intern("number");
  id_sum = rb_intern("sum");
  id_flush_cell = rb_intern("flush_cell");
  id_deliver = rb_intern("deliver");
  id_abandoned = rb_intern("abandoned?");
  id_max_values = rb_intern("max_values");
  id_put = rb_intern("put");
  id_head_bytes = rb_intern("head_bytes");
  id_tail_bytes = rb_intern("tail_bytes");
  id_queue = rb_intern("queue");
  id_append = rb_intern("<<");

  VALUE native = rb_define_module_under(instrument, "Native");
  rb_define_module_function(native, "pack", native_pack, 1);
  rb_define_module_function(native, "bins", native_bins, 2);
  rb_define_module_function(native, "send_packets", native_send_packets, 4);

  VALUE bins = bins_class = rb_define_class_under(native, "Bins", rb_cObject);
  rb_undef_alloc_func(bins);
  rb_define_method(bins, "release", bins_release, 0);
  rb_define_method(bins, "encode", bins_encode, 0);
  rb_define_method(bins, "counts", bins_counts, 0);
  rb_define_method(bins, "count", bins_count, 0);
  rb_define_method(bins, "sum", bins_sum, 0);
  rb_define_method(bins, "min", bins_min, 0);
  rb_define_method(bins, "max", bins_max, 0);

  VALUE queue = rb_define_class_under(native, "MessageQueue", rb_cObject);
  rb_define_alloc_func(queue, queue_alloc);
  rb_define_method(queue, "initialize", queue_initialize, 2);
  rb_define_method(queue, "push", queue_push, 1);
  rb_define_method(queue, "push_packet", queue_push_packet, 1);
  rb_define_method(queue, "take", queue_take, 0);
  rb_define_method(queue, "park", queue_park, 0);
  rb_define_method(queue, "wake", queue_wake, 0);
  rb_define_method(queue, "clear", queue_clear, 0);
  rb_define_method(queue, "close", queue_close, 0);
  rb_define_method(queue, "closed?", queue_closed, 0);
  rb_define_method(queue, "parked?", queue_parked, 0);
  rb_define_method(queue, "length", queue_length, 0);

  VALUE emitter = rb_define_class_under(native, "Emitter", rb_cObject);
  rb_define_alloc_func(emitter, emitter_alloc);
  rb_define_method(emitter, "initialize", emitter_initialize, 2);
  rb_define_method(emitter, "template", emitter_template, 0);
  rb_define_method(emitter, "tags", emitter_tags, 0);
  rb_define_method(emitter, "tags=", emitter_set_tags, 1);
  rb_define_method(emitter, "put", emitter_put, 1);

  VALUE cell = rb_define_class_under(native, "Cell", rb_cObject);
  rb_define_alloc_func(cell, cell_alloc);
  rb_define_method(cell, "initialize", cell_initialize, -1);
  rb_define_method(cell, "template", cell_template, 0);
  rb_define_method(cell, "template=", cell_set_template, 1);
  rb_define_method(cell, "table", cell_table, 0);
  rb_define_method(cell, "tags", cell_tags, 0);
  rb_define_method(cell, "tags=", cell_set_tags, 1);
  rb_define_method(cell, "core=", cell_set_core, 1);
  rb_define_method(cell, "idle", cell_idle, 0);
  rb_define_method(cell, "idle=", cell_set_idle, 1);
  rb_define_method(cell, "expired", cell_expired, 0);
  rb_define_method(cell, "expired=", cell_set_expired, 1);
  rb_define_method(cell, "removed", cell_removed, 0);
  rb_define_method(cell, "removed=", cell_set_removed, 1);
  rb_define_method(cell, "bound", cell_bound, 0);
  rb_define_method(cell, "bound=", cell_set_bound, 1);
  rb_define_method(cell, "abandoned?", cell_abandoned, 0);
  rb_define_method(cell, "reset", cell_reset, 0);

  VALUE counter = rb_define_class_under(native, "CounterCell", cell);
  rb_define_method(counter, "put", counter_put, 1);
  rb_define_method(counter, "take", counter_take, 0);
  VALUE gauge = rb_define_class_under(native, "GaugeCell", cell);
  rb_define_method(gauge, "put", gauge_put, 1);
  rb_define_method(gauge, "take", gauge_take, 0);
  rb_define_method(gauge, "value", cell_value, 0);
  rb_define_method(gauge, "stamp", cell_stamp, 0);
  VALUE samples = rb_define_class_under(native, "SampleCell", cell);
  rb_define_method(samples, "put", samples_put, 1);
  rb_define_method(samples, "take", samples_take, 0);
  rb_define_method(samples, "fill", samples_fill, 1);
  rb_define_method(samples, "binned", samples_binned, 0);
  rb_define_method(samples, "take_bins", samples_take_bins, 0);

  VALUE calls = rb_define_module_under(native, "CounterCalls");
  rb_define_method(calls, "increment", handle_increment, -1);
  calls = rb_define_module_under(native, "GaugeCalls");
  rb_define_method(calls, "set", handle_set, 1);
  calls = rb_define_module_under(native, "SampleCalls");
  rb_define_method(calls, "record", handle_record, 1);

  VALUE map = rb_define_class_under(native, "ContextMap", rb_cObject);
  rb_define_alloc_func(map, map_alloc);
  rb_define_method(map, "initialize", map_initialize, 1);
  rb_define_method(map, "put", map_put, 3);
  rb_define_method(map, "store", map_store, 3);
  rb_define_method(map, "sweep", map_sweep, 0);
  rb_define_method(map, "clear", map_clear, 0);
  rb_define_method(map, "length", map_length, 0);
  rb_define_method(map, "longest_bucket", map_longest_bucket, 0);
}
