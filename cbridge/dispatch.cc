// One entry reaches every operator: look it up in the dispatcher once, then call it boxed, with its schema's defaults filled in.
#include "bridge.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <algorithm>
#include <memory>

using c10::TypeKind;

namespace molt {

struct Op {
  c10::OperatorHandle handle;
  std::vector<TypeKind> kind, element;  // per argument: its type under an optional, and a list's element type
  std::vector<int64_t> values;          // of an argument that is an enumeration: how many it has; else 0
  std::vector<int> length;              // of an argument like int[2]: 2; else 0
  std::vector<int> target;              // per result: the argument that it is written to, or -1
  int device = -1;                      // the device argument of an operator that takes no tensor but makes one
  int generator = -1;                   // the argument of a random operator that a seed may stand for
  bool may_be_empty(size_t argument, int length) const;
  explicit Op(c10::OperatorHandle h) : handle(std::move(h)) {
    auto bare = [](c10::TypePtr t) { return t->kind() == TypeKind::OptionalType ? t->expectRef<c10::OptionalType>().getElementType() : t; };
    const auto& schema = handle.schema();
    for (const auto& a : schema.arguments()) {
      auto t = bare(a.type());
      kind.push_back(t->kind());
      element.push_back(t->kind() == TypeKind::ListType ? t->expectRef<c10::ListType>().getElementType()->kind() : TypeKind::AnyType);
      auto real = bare(a.real_type())->kind();  // type() has integers in place of enumerations
      values.push_back(real == TypeKind::MemoryFormatType ? int64_t(c10::MemoryFormat::NumOptions)
                       : real == TypeKind::LayoutType     ? int64_t(c10::Layout::NumOptions)
                       : real == TypeKind::ScalarTypeType ? int64_t(c10::ScalarType::NumOptions)
                                                          : 0);
      length.push_back(a.N().value_or(0));
      if (kind.back() == TypeKind::DeviceObjType) device = int(kind.size()) - 1;
      if (kind.back() == TypeKind::GeneratorType) generator = int(kind.size()) - 1;
    }
    if (std::count(kind.begin(), kind.end(), TypeKind::TensorType)) device = -1;
    for (const auto& r : schema.returns()) {
      target.push_back(-1);
      if (!r.alias_info() || !r.alias_info()->isWrite() || r.type()->kind() != TypeKind::TensorType) continue;
      for (size_t i = 0; i < kind.size(); i++) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == r.alias_info()->beforeSets()) target.back() = int(i);
      }
    }
  }
};

// Some kernels trust the length of an int[2]; none at all is for those whose default it is.
bool Op::may_be_empty(size_t k, int n) const {
  const auto& usual = handle.schema().arguments()[k].default_value();
  return n == 0 && usual && (usual->isNone() || (usual->isIntList() && usual->toIntVector().empty()));
}

static constexpr int kMaxOps = 8192;
static std::unique_ptr<Op> ops[kMaxOps];
static std::atomic<int32_t> num_ops{0};
static std::mutex ops_mutex;

static Op& op_at(int32_t i) {
  if (i < 0 || i >= num_ops) throw std::runtime_error("no such operator");
  return *ops[i];
}

[[noreturn]] static void wrong(const Op& op, size_t k, const char* got) {
  const auto& schema = op.handle.schema();
  const auto& a = schema.arguments()[k];
  throw std::runtime_error("argument " + std::to_string(k + 1) + " (" + a.name() + ") must be " + a.type()->str() + ", not " + got +
                           "; the schema is " + toString(schema));
}

static double as_double(int64_t bits) {
  double d;
  memcpy(&d, &bits, sizeof d);
  return d;
}

// A random operator takes the seed of a generator of its own, on the device of its first tensor or of the one that it is to make.
static at::Generator generator(const torch::jit::Stack& args, uint64_t seed) {
  c10::Device device = at::kCPU;
  for (const auto& v : args) {
    if (v.isTensor() && v.toTensor().defined()) device = v.toTensor().device();
    else if (v.isDevice()) device = v.toDevice();
    else continue;
    break;
  }
  if (device.is_cpu()) return at::detail::createCPUGenerator(seed);
  auto g = at::globalContext().getAcceleratorHooksInterface(device.type()).getNewGenerator(device.index());
  g.set_current_seed(seed);
  return g;
}

// Lists of numbers take integers, floats and bools alike.
template <class T>
static c10::IValue number_list(const mt_arg& a, const int64_t* p, T number) {
  c10::List<at::Scalar> v;
  for (int j = 0; j < a.n; j++) v.push_back(number(p[j]));
  return v;
}

static c10::IValue tensor_list(const Op& op, size_t k, const mt_arg& a, const int64_t* pool) {
  if (op.element[k] == TypeKind::TensorType) {
    std::vector<at::Tensor> v;
    v.reserve(a.n);
    for (int j = 0; j < a.n; j++) {
      if (!pool[a.v + j]) wrong(op, k, ("with none at " + std::to_string(j)).c_str());
      v.push_back(tensor(mt_tensor(pool[a.v + j])));
    }
    return v;
  }
  if (op.element[k] != TypeKind::OptionalType) wrong(op, k, "a list of tensors");
  c10::List<std::optional<at::Tensor>> v;
  for (int j = 0; j < a.n; j++) {
    mt_tensor h = mt_tensor(pool[a.v + j]);
    v.push_back(h ? std::optional<at::Tensor>(tensor(h)) : std::nullopt);
  }
  return v;
}

static c10::IValue value(const Op& op, size_t k, const mt_arg& a, const int64_t* pool) {
  TypeKind kind = op.kind[k];
  bool list = kind == TypeKind::ListType, numbers = op.element[k] == TypeKind::NumberType;
  const int64_t* p = pool + (a.tag >= MT_STRING ? a.v : 0);
  switch (a.tag) {
    case MT_NONE: {
      const auto& declared = op.handle.schema().arguments()[k];
      if (declared.default_value()) return *declared.default_value();
      if (declared.type()->kind() != TypeKind::OptionalType) wrong(op, k, "missing");
      return {};
    }
    case MT_TENSOR:
      if (kind != TypeKind::TensorType) wrong(op, k, "a tensor");
      return tensor(mt_tensor(a.v));
    case MT_INT:
      if (kind == TypeKind::FloatType) return double(a.v);
      if (op.values[k] && (a.v < 0 || a.v >= op.values[k])) wrong(op, k, "a number that stands for none");
      if (kind == TypeKind::IntType || kind == TypeKind::NumberType) return a.v;
      if (list && op.element[k] == TypeKind::IntType) return std::vector<int64_t>(std::max(op.length[k], 1), a.v);
      if (kind == TypeKind::GeneratorType) return {};  // filled in when the arguments after it are known
      wrong(op, k, "an integer");
    case MT_DOUBLE:
      if (kind != TypeKind::FloatType && kind != TypeKind::NumberType) wrong(op, k, "a float");
      return as_double(a.v);
    case MT_BOOL:
      if (kind != TypeKind::BoolType && kind != TypeKind::NumberType) wrong(op, k, "a bool");
      return bool(a.v);
    case MT_STRING: {
      std::string text(reinterpret_cast<const char*>(p), size_t(a.n));
      if (kind == TypeKind::DeviceObjType) return c10::Device(text);
      if (kind != TypeKind::StringType) wrong(op, k, "a string");
      return text;
    }
    case MT_INTS:
      if (numbers) return number_list(a, p, [](int64_t i) { return at::Scalar(i); });
      if (!list || op.element[k] != TypeKind::IntType) wrong(op, k, "a list of integers");
      if (a.n == 1) return std::vector<int64_t>(std::max(op.length[k], 1), p[0]);
      if (op.length[k] > 1 && a.n != op.length[k] && !op.may_be_empty(k, a.n)) wrong(op, k, "a list of another length");
      return std::vector<int64_t>(p, p + a.n);
    case MT_DOUBLES: {
      if (numbers) return number_list(a, p, [](int64_t i) { return at::Scalar(as_double(i)); });
      if (!list || op.element[k] != TypeKind::FloatType) wrong(op, k, "a list of floats");
      std::vector<double> v;
      for (int j = 0; j < a.n; j++) v.push_back(as_double(p[j]));
      return v;
    }
    case MT_BOOLS: {
      if (numbers) return number_list(a, p, [](int64_t i) { return at::Scalar(i != 0); });
      if (!list || op.element[k] != TypeKind::BoolType) wrong(op, k, "a list of bools");
      c10::List<bool> v;
      for (int j = 0; j < a.n; j++) v.push_back(p[j] != 0);
      return v;
    }
    case MT_STRINGS: {  // each is (offset, length)
      if (!list || op.element[k] != TypeKind::StringType) wrong(op, k, "a list of strings");
      std::vector<std::string> v;
      for (int j = 0; j < a.n; j++) v.emplace_back(reinterpret_cast<const char*>(pool + p[2 * j]), size_t(p[2 * j + 1]));
      return v;
    }
    case MT_TENSORS:
      if (!list) wrong(op, k, "a list of tensors");
      return tensor_list(op, k, a, pool);
    case MT_OTHER:
      wrong(op, k, std::string(reinterpret_cast<const char*>(p), size_t(a.n)).c_str());
  }
  wrong(op, k, "an unknown kind of argument");
}

static at::Tensor as_tensor(const c10::IValue& v) {
  if (v.isTensor()) return v.toTensor();
  if (v.isInt()) return at::scalar_tensor(v.toInt(), at::kLong);
  if (v.isDouble()) return at::scalar_tensor(v.toDouble(), at::kDouble);
  if (v.isBool()) return at::scalar_tensor(v.toBool(), at::kBool);
  if (v.isScalar()) return at::scalar_tensor(v.toScalar());
  throw std::runtime_error("result of type " + v.tagKind() + " has no place in a tensor");
}

}  // namespace molt

using namespace molt;

int32_t mt_op(const char* name, const char* overload, char** err) {
  return guard(err, -1, [&] {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    std::lock_guard<std::mutex> lock(ops_mutex);
    int32_t i = num_ops;
    if (i == kMaxOps) throw std::runtime_error("too many operators in use");
    ops[i] = std::make_unique<Op>(handle);
    num_ops = i + 1;
    return i;
  });
}

int32_t mt_call(mt_scope s, int32_t i, const mt_arg* args, int32_t n, const int64_t* pool, mt_tensor* out, int32_t nout, char** err) {
  return guard(err, -1, [&] {
    Scope& scope = usable(s);
    Op& op = op_at(i);
    size_t want = op.kind.size();
    if (size_t(n) > want) throw std::runtime_error("too many arguments; the schema is " + toString(op.handle.schema()));
    torch::jit::Stack stack;
    stack.reserve(want);
    for (size_t k = 0; k < want; k++) {
      mt_arg a = k < size_t(n) ? args[k] : mt_arg{MT_NONE, 0, 0};
      bool place = int(k) == op.device && a.tag == MT_NONE && scope.device;
      stack.push_back(place ? c10::IValue(*scope.device) : value(op, k, a, pool));
    }
    if (op.generator >= 0 && op.generator < n && args[op.generator].tag == MT_INT)
      stack[op.generator] = generator(stack, uint64_t(args[op.generator].v));
    use_arguments(stack, scope);
    scope.sequence = at::sequence_number::peek();
    Guards guards(scope);
    op.handle.callBoxed(stack);
    int32_t count = 0;
    scope.more.clear();
    auto add = [&](mt_tensor h) {
      if (count++ < nout) out[count - 1] = h;
      else scope.more.push_back(h);
    };
    for (size_t r = 0; r < stack.size(); r++) {
      int target = r < op.target.size() ? op.target[r] : -1;
      if (target >= 0 && target < n && args[target].tag == MT_TENSOR) {
        add(mt_tensor(args[target].v));
      } else if (stack[r].isTensorList()) {
        for (at::Tensor t : stack[r].toTensorVector()) add(put(scope, std::move(t)));
      } else {
        add(put(scope, as_tensor(stack[r])));
      }
    }
    return count;
  });
}

int32_t mt_more(mt_scope s, mt_tensor* out, int32_t n, char** err) {
  return attempt(err, [&] {
    const auto& more = usable(s).more;
    if (size_t(n) != more.size()) throw std::runtime_error("the last call left " + std::to_string(more.size()) + " more results");
    std::copy(more.begin(), more.end(), out);
  });
}

int32_t mt_seed(uint64_t seed, char** err) {
  return attempt(err, [&] { at::manual_seed(seed); });
}
