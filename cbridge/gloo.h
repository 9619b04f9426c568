// Names that c10d's ProcessGroupGloo.hpp takes from Gloo, whose headers the wheel lacks: enough to hold pointers to them and to
// call c10d. CMake puts this file where that header looks for Gloo's.
#pragma once
#include <chrono>
#include <string>
#include <vector>

namespace gloo {
class Context {
 public:
  void setTimeout(std::chrono::milliseconds);
};
namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport
namespace rendezvous {
class Store {
 public:
  using Keys = std::vector<std::string>;
  virtual ~Store();
  virtual void set(const std::string&, const std::vector<char>&) = 0;
  virtual std::vector<char> get(const std::string&) = 0;
  virtual void wait(const Keys&) = 0;
  virtual void wait(const Keys&, const std::chrono::milliseconds&) = 0;
};
}  // namespace rendezvous
}  // namespace gloo
