# frozen_string_literal: true

require "socket"

# An HTTP listener that reads what a client sends as columns, and answers as it is told.
class ColumnsReceiver
  # A request of a client: its headers in lower case, and the body.
  Request = Struct.new(:path, :headers, :body) do
    def number
      headers["x-weir-sequence"]&.to_i
    end

    def client
      headers["x-weir-client"]
    end

    def rows
      ColumnsReceiver.decode(body)
    end
  end

  # A point of a payload. Bins are pairs of key and count, as they are written.
  Row = Struct.new(:name, :tags, :type, :interval, :at, :value, :samples, :total, :lowest, :highest, :bins)

  # Reads a payload field by field, without the code of the client.
  class Decoder
    def initialize(body)
      outer = fields(body)
      raise "unexpected fields #{outer.keys}" unless outer.keys == [3]

      @fields = fields(outer[3])
      @before = Hash.new(0)
      @at = Hash.new(0)
    end

    def rows
      names = texts(1)
      tags = texts(2)
      sets = tag_sets(tags)
      types = []
      types << unsigned(10) until ended?(10)
      rows = types.map { |type| row(type, names, sets) }
      left = @fields.reject { |field, bytes| [1, 2, 3].include?(field) || @at[field] == bytes.bytesize }
      raise "left over: #{left.keys}" unless left.empty?

      rows
    end

    private

    def row(type, names, sets)
      row = Row.new(names.fetch(delta(11) - 1))
      set = delta(12)
      row.tags = set.zero? ? [] : sets.fetch(set - 1)
      raise "unexpected references" unless [signed(13), signed(23), signed(24)] == [0, 0, 0]

      row.interval = unsigned(14)
      raise "more than one point" unless unsigned(15) == 1

      row.at = delta(16)
      row.type = { 1 => "count", 3 => "gauge", 4 => "sketch" }.fetch(type & 0xF)
      row.type == "sketch" ? read_sketch(row, type & 0xF0) : row.value = value(type & 0xF0)
      row
    end

    def read_sketch(row, type)
      row.total = value(type)
      row.lowest = value(type)
      row.highest = value(type)
      row.samples = signed(17)
      key = 0
      row.bins = Array.new(unsigned(20)) { [key += signed(21), unsigned(22)] }
    end

    def value(type)
      case type
      when 0 then 0.0
      when 0x10 then signed(17).to_f
      when 0x20 then fixed(18, 4).unpack1("e")
      when 0x30 then fixed(19, 8).unpack1("E")
      else raise "value type #{type}"
      end
    end

    def fields(bytes)
      found = {}
      at = 0
      while at < bytes.bytesize
        tag, at = varint(bytes, at)
        size, at = varint(bytes, at)
        raise "wire type of #{tag}" unless tag & 7 == 2
        raise "field #{tag >> 3} twice or too short" if found.key?(tag >> 3) || at + size > bytes.bytesize

        found[tag >> 3] = bytes.byteslice(at, size)
        at += size
      end
      found
    end

    def varint(bytes, start)
      value = shift = 0
      start.upto(bytes.bytesize - 1) do |index|
        byte = bytes.getbyte(index)
        value |= (byte & 0x7F) << shift
        shift += 7
        return [value, index + 1] if byte < 0x80
      end
      raise "a number has no end"
    end

    def ended?(field)
      @at[field] >= @fields[field].to_s.bytesize
    end

    def unsigned(field)
      value, @at[field] = varint(@fields.fetch(field), @at[field])
      value
    end

    def signed(field)
      value = unsigned(field)
      value.odd? ? -((value + 1) >> 1) : value >> 1
    end

    def delta(field)
      @before[field] += signed(field)
    end

    def fixed(field, size)
      part = @fields.fetch(field).byteslice(@at[field], size)
      @at[field] += size
      part
    end

    def texts(field)
      texts = []
      until ended?(field)
        size = unsigned(field)
        texts << fixed(field, size).force_encoding(Encoding::UTF_8)
      end
      raise "not UTF-8" unless texts.all?(&:valid_encoding?)

      texts
    end

    def tag_sets(tags)
      sets = []
      until ended?(3)
        index = 0
        sets << Array.new(signed(3)) { tags.fetch((index += signed(3)) - 1) }
      end
      sets
    end
  end

  def self.decode(body)
    Decoder.new(body).rows
  end

  # From now on clients of this process wait for an agent as long as a test does. Receivers are threads of a test, and
  # may get their turn later than an application would wait.
  def self.be_waited_for(seconds)
    columns = StatsD::Instrument::Columns
    { columns => %i[PATIENCE], columns::Endpoint => %i[CONNECT_TIMEOUT TIMEOUT] }.each do |owner, names|
      names.each do |name|
        owner.send(:remove_const, name)
        owner.const_set(name, seconds)
      end
    end
  end

  attr_reader :port

  # @yieldparam request [Request]
  # @yieldreturn [Integer, String, nil] a status, a whole answer, or nothing: the connection is closed without one
  def initialize(socket = TCPServer.new("127.0.0.1", 0), &answer)
    @socket = socket
    @port = socket.local_address.ip_port if socket.is_a?(TCPServer)
    @answer = answer || proc { 200 }
    @requests = []
    @lock = Mutex.new
    @thread = Thread.new { serve }
  end

  def address
    "http://127.0.0.1:#{@port}"
  end

  def requests
    @lock.synchronize { @requests.dup }
  end

  # Requests with a payload.
  def payloads
    requests.select(&:number)
  end

  # Rows that an agent would have counted: each number of a client once.
  def rows
    payloads.select { |request| request.headers["counted"] }.uniq { |one| [one.client, one.number] }.flat_map(&:rows)
  end

  def total(name)
    rows.select { |row| row.name == name && row.type == "count" }.sum(&:value)
  end

  # Of all samples.
  def sum(name)
    rows.select { |row| row.name == name && row.type == "sketch" }.sum(&:total)
  end

  def samples(name)
    rows.select { |row| row.name == name && row.type == "sketch" }.sum(&:samples)
  end

  def close
    @thread.kill
    @thread.join(5)
    @socket.close
  end

  private

  def serve
    loop do
      connection = @socket.accept
      Thread.new(connection) { |peer| exchange(peer) }
    end
  rescue IOError, SystemCallError
    nil
  end

  def exchange(peer)
    request = read(peer) or return
    answer = @answer.call(request)
    # An answer without which the client repeats counts as well: the agent may have applied the payload.
    request.headers["counted"] = answer.nil? || answer.to_s.match?(/(?:\A|\AHTTP\S+ |\nHTTP\S+ )200/)
    @lock.synchronize { @requests << request }
    answer = "HTTP/1.1 #{answer} X\r\nContent-Length: 0\r\n\r\n" if answer.is_a?(Integer)
    peer.write(answer) if answer
  rescue IOError, SystemCallError
    nil
  ensure
    peer.close
  end

  def read(peer)
    first = peer.gets("\r\n", chomp: true) or return
    headers = {}
    until (line = peer.gets("\r\n", chomp: true)).to_s.empty?
      name, value = line.split(": ", 2)
      headers[name.downcase] = value
    end
    method, path, = first.split
    raise "unexpected method #{method}" unless method == "POST"

    Request.new(path, headers, peer.read(headers.fetch("content-length").to_i))
  end
end
